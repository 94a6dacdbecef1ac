# Algebra, solvers, statistics, biology.

#: gnuplot gnuplot-nox
#: needs gnuplot
awk 'BEGIN { for (i = 0; i < 900000; i++) print i, i * 7919 % 65537, i * 31 % 1009 }' >d
#: run
gnuplot -e 'set terminal svg; set output "/dev/null"; set dgrid3d 20,20; stats "d" using 2 nooutput;
    print STATS_mean, STATS_median; plot "d" using 1:2:3 with dots palette'

#: gap gap-core
#: needs gap
#: run
gap -q -o 2g -b <<'X'
l := List([1 .. 300000], i -> [i, String(i)]);;
s := 0;;
for r in [1 .. 2] do for p in l do s := (s * 31 + p[1] + Length(p[2])) mod 1000000007; od; od;
Print(s, "\n");
X

#: pari pari-gp
#: needs gp
#: run
echo 'v = vector(500000, i, [i, i^3]); s = 0;
for(r = 1, 2, for(i = 1, #v, s = (s * 31 + v[i][1] + v[i][2]) % 1000000007)); print(s)' |
    gp -q -s 200000000

#: maxima maxima
#: needs maxima
#: run
maxima --very-quiet --batch-string='
p: expand((x + y + z + w + 1)^10)$ q: diff(p, x)$ r: expand(q * (x - 1))$
print(length(args(p)), length(args(r)))$ print(subst([x = 2, y = 3, z = 5, w = 7], r))$' | tail -2

#: minisat minisat
#: needs minisat
sat_formula 150000 2.2 >f.cnf
#: run
minisat -verb=0 f.cnf m.out >/dev/null || true
sha256sum m.out

#: cadical cadical
#: needs cadical
sat_formula 150000 2.2 >f.cnf
#: run
cadical -q f.cnf >m.out || true
sha256sum m.out

#: z3 z3
#: needs z3
{
    for i in $(seq 500); do echo "(declare-const a$i (_ BitVec 32))"; done
    for i in $(seq 2 500); do
        j=$((i - 1))
        echo "(assert (= a$i (bvadd (bvmul a$j #x0000001f) (bvxor a$j #x0000abcd))))"
    done
    echo '(assert (= a1 #x00000007)) (check-sat) (get-value (a500))'
} >f.smt2
#: run
z3 f.smt2

#: glpk glpk-utils
#: needs glpsol
cat >m.mod <<'X'
set I := 1 .. 250; set J := 1 .. 150;
var x{I, J} >= 0;
minimize cost: sum{i in I, j in J} ((i * 7919 + j * 104729) mod 1009 + 1) * x[i, j];
s.t. a{i in I}: sum{j in J} x[i, j] = 4;
s.t. b{j in J}: sum{i in I} x[i, j] <= 7.5;
solve; display cost;
X
#: run
glpsol -m m.mod --tmlim 1000 | grep '^cost'

#: cbc coinor-cbc
#: needs cbc glpsol
cat >m.mod <<'X'
set I := 1 .. 250; set J := 1 .. 150;
var x{I, J} >= 0;
minimize cost: sum{i in I, j in J} ((i * 7919 + j * 104729) mod 1009 + 1) * x[i, j];
s.t. a{i in I}: sum{j in J} x[i, j] = 4;
s.t. b{j in J}: sum{i in I} x[i, j] <= 6.5;
end;
X
glpsol -m m.mod --check --wlp m.lp >/dev/null
#: run
cbc m.lp solve quit | grep 'Objective value'

#: bwa bwa
#: needs bwa
dna 2000000 >g.fa
#: run
bwa index -a is g.fa 2>/dev/null
sha256sum g.fa.bwt g.fa.sa

#: samtools samtools
#: needs samtools
{
    printf '@SQ\tSN:a\tLN:9000000\n'
    awk 'BEGIN { for (i = 0; i < 150000; i++)
        printf "r%d\t0\ta\t%d\t60\t20M\t*\t0\t0\tACGTACGTACGTACGTACGT\t%s\n", i, i * 7919 % 8999000 + 1,
            "IIIIIIIIIIIIIIIIIIII" }'
} >r.sam
#: run
samtools sort -m 500M -@ 0 --no-PG -O sam r.sam | sha256sum

#: blast ncbi-blast+
#: needs makeblastdb blastn
dna 4000000 >g.fa
head -c 3000 g.fa >q.fa
#: run
makeblastdb -in g.fa -dbtype nucl -out db >&2
blastn -db db -query q.fa -outfmt '6 qstart qend sstart send bitscore' -num_threads 1 | sha256sum

#: scipy python3-scipy
#: needs /usr/lib/python3/dist-packages/scipy
#: run
/usr/bin/python3 -c '
import numpy as np, scipy.sparse as sp, scipy.sparse.linalg as la
n = 200
d = sp.kron(sp.eye(n), sp.diags([-1, 2, -1], [-1, 0, 1], (n, n)))
d = (d + sp.kron(sp.diags([-1, 2, -1], [-1, 0, 1], (n, n)), sp.eye(n))).tocsc()
x = la.spsolve(d, np.ones(n * n))
print("%.6f %.6f" % (x.sum() / n, x.max()))'
