# lines N: N lines of different lengths with numbers and words, the same ones each time.
lines() {
    awk -v n="$1" 'BEGIN {
        s = 1
        for (i = 0; i < n; i++) {
            s = (s * 69069 + 12345) % 4294967296
            printf "%d %08x word%d text of line %d %s\n", s, s, s % 5003, i, substr("abcdefghijklmnopqrst", s % 19 + 1)
        }
    }'
}

# structures_java: a program for Java virtual machines, compiled.
structures_java() {
    cat >Structures.java <<'X'
import java.util.*;
class Structures {
    public static void main(String[] a) {
        Map<Integer, List<String>> m = new HashMap<>();
        long s = 0;
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < 200_000; i++)
                m.put(i, List.of("s" + i, "t" + round));
            for (int i = 0; i < 200_000; i++) {
                List<String> v = m.get(i);
                if (v != null) s = (s * 31 + v.get(0).length() + v.get(1).hashCode()) % 1000000007L;
            }
            System.gc();
        }
        System.out.println(s);
    }
}
X
    javac Structures.java
}

# perl_objects: makes objects.pl, a program that holds some 100 MiB of small values.
perl_objects() {
    cat >objects.pl <<'X'
my ($n, $s) = ($ARGV[0] // 250_000, $ARGV[1] // 0);
my @a = map { ["v$_", $_] } 1 .. $n;
for my $r (1 .. 2) { $s = ($s * 31 + length($_->[0]) + $_->[1]) % 1_000_000_007 for @a }
$s = ($s * 31 + $a[$_ * 7919 % $n][1]) % 1_000_000_007 for 1 .. 5_000;
print "sum $s\n";
X
}

# sat_formula VARIABLES RATIO: clauses of three, few enough that they can be satisfied.
sat_formula() {
    awk -v v="$1" -v r="$2" 'BEGIN {
        srand(7); n = int(v * r); print "p cnf", v, n
        for (i = 0; i < n; i++) {
            for (j = 0; j < 3; j++)
                printf "%d ", (int(rand() * v) + 1) * (rand() < 0.5 ? -1 : 1)
            print 0
        }
    }'
}

# dna N: a sequence of N letters.
dna() {
    awk -v n="$1" 'BEGIN {
        srand(7); print ">a"
        for (i = 0; i < n; i += 60) {
            line = ""
            for (j = 0; j < 60; j++) line = line substr("ACGT", int(rand() * 4) + 1, 1)
            print line
        }
    }'
}

# await COMMAND...: until the command succeeds, some seconds at most.
await() {
    for await_turn in $(seq 600); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    echo "never: $*" >&2
    return 1
}

# cpp_source N NAME: N functions with templates.
cpp_source() {
    echo '#include <map>'
    echo '#include <string>'
    echo '#include <vector>'
    for i in $(seq "$1"); do
        echo "struct S$2_$i { int a; std::string b; bool operator<(const S$2_$i &o) const { return a < o.a; } };"
        echo "int f$2_$i(int n) { std::map<S$2_$i, std::vector<int>> m; m[{n, \"x\"}].push_back($i);"
        echo '    return m.begin()->second[0]; }'
    done
}

# object_files N M: N object files of M functions each, with a section of its own each, in o.
object_files() {
    mkdir -p o
    for i in $(seq "$1"); do
        awk -v n="$1" -v m="$2" -v i="$i" 'BEGIN { for (j = 0; j < m; j++)
            printf ".section .text.f%d_%d,\"ax\"\n.globl f%d_%d\nf%d_%d: call f%d_%d@PLT\nret\n", i, j, i, j,
                i, j, (i + j) % n + 1, j * 7919 % m }' | as -o "o/$i.o"
    done
}

# many_records: a program for JavaScript that holds some 60 MiB of small objects.
many_records() {
    cat <<'X'
const v = Array.from({ length: 400000 }, (_, n) => ({ n, s: "s" + n }));
let s = 0;
for (let r = 0; r < 2; r++) for (const x of v) s = (s * 31 + x.n + x.s.length) % 1000003;
for (let i = 0; i < 5000; i++) s = (s * 31 + v[i * 7919 % v.length].n) % 1000003;
console.log(s);
X
}
