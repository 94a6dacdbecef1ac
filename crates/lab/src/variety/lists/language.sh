# Interpreters, virtual machines and compilers' run times: each makes many small objects, walks over
# all of them three times, looks at some thousands of them in no order, and prints a sum.

#: ruby ruby
#: needs ruby
#: run
ruby -e '
a = Array.new(250_000) { |i| ["v" * (i % 23) + i.to_s * 4, i] }
sum = 0
2.times { a.each { |s, n| sum = (sum * 31 + s.size + n) % 1_000_000_007 } }
20_000.times { |i| sum = (sum * 31 + a[i * 7919 % a.size][0].size) % 1_000_000_007 }
puts sum, a.map { |s, n| s.size }.tally.size'

#: php php-cli
#: needs php
#: run
php -d memory_limit=2G -r '
$a = [];
for ($i = 0; $i < 130000; $i++) $a["k$i"] = ["n" => $i, "s" => "x$i"];
$s = 0;
for ($r = 0; $r < 2; $r++)
    foreach ($a as $k => $v) $s = ($s * 31 + $v["n"] + strlen($v["s"])) % 1000000007;
for ($i = 0; $i < 5000; $i++) $s = ($s * 31 + $a["k".($i * 7919 % 130000)]["n"]) % 1000000007;
echo $s, " ", count($a), "\n";'

#: lua lua5.4
#: needs lua5.4
#: run
lua5.4 -e '
collectgarbage("setpause", 1000)
local t, s = {}, 0
for i = 1, 250000 do t[i] = { n = i, s = ("s" .. i):rep(9) } end
for r = 1, 2 do for i, v in ipairs(t) do s = (s * 31 + v.n + #v.s) % 1000000007 end end
for i = 1, 5000 do s = (s * 31 + t[i * 7919 % #t + 1].n) % 1000000007 end
print(s)'

#: luajit luajit
#: needs luajit
#: run
luajit -e '
collectgarbage("setpause", 1000)
local t, s = {}, 0
for i = 1, 400000 do t[i] = { n = i, s = ("s" .. i):rep(9) } end
for r = 1, 2 do for i, v in ipairs(t) do s = (s * 31 + v.n + #v.s) % 1000000007 end end
for i = 1, 5000 do s = (s * 31 + t[i * 7919 % #t + 1].n) % 1000000007 end
print(s)'

#: guile guile-3.0
#: needs guile
cat >p.scm <<'X'
(define v (make-vector 500000))
(define s 0)
(define (add x) (set! s (modulo (+ (* s 31) x) 1000000007)))
(do ((i 0 (+ i 1))) ((= i 500000)) (vector-set! v i (list i (number->string i))))
(do ((r 0 (+ r 1))) ((= r 2))
  (do ((i 0 (+ i 1))) ((= i 500000)) (add (string-length (cadr (vector-ref v i))))))
(do ((i 0 (+ i 1))) ((= i 5000)) (add (car (vector-ref v (modulo (* i 7919) 500000)))))
(display s) (newline)
X
#: run
guile --no-auto-compile p.scm

#: racket racket
#: needs racket
cat >p.rkt <<'X'
#lang racket/base
(define v (make-vector 600000))
(define s 0)
(define (add x) (set! s (modulo (+ (* s 31) x) 1000000007)))
(for ([i (in-range 600000)]) (vector-set! v i (cons i (number->string i))))
(for* ([r (in-range 2)] [p (in-vector v)]) (add (string-length (cdr p))))
(for ([i (in-range 5000)]) (add (car (vector-ref v (modulo (* i 7919) 600000)))))
(displayln s)
X
raco make p.rkt
#: run
racket p.rkt

#: sbcl sbcl
#: needs sbcl
cat >p.lisp <<'X'
(defvar *v* (make-array 500000))
(defvar *s* 0)
(defun add (x) (setf *s* (mod (+ (* *s* 31) x) 1000000007)))
(dotimes (i 500000) (setf (aref *v* i) (cons i (format nil "~a" i))))
(dotimes (r 2) (loop for p across *v* do (add (length (cdr p)))))
(dotimes (i 5000) (add (car (aref *v* (mod (* i 7919) 500000)))))
(gc :full t)
(format t "~a~%" *s*)
X
#: run
sbcl --dynamic-space-size 2GB --script p.lisp

#: ghc-program ghc
#: needs ghc
cat >P.hs <<'X'
import qualified Data.Map.Strict as M
import Data.List (foldl')
main :: IO ()
main = do
  let m = foldl' (\a i -> M.insert i (show i) a) M.empty [0 .. 150000 :: Int]
      walk s = M.foldlWithKey' (\t k v -> (t * 31 + k + length v) `mod` 1000000007) s m
  print (walk (walk (walk 0)))
  print (foldl' (\s i -> (s * 31 + maybe 0 length (M.lookup (i * 7919 `mod` 150000) m)) `mod` 1000003)
    0 [1 .. 5000])
X
ghc -O1 P.hs -o p >&2
#: run
./p

#: ghc ghc
#: needs ghc
{
    echo 'module P where'
    echo 'import qualified Data.Map as M'
    for i in $(seq 40); do
        echo "data T$i = A$i Int | B$i String | C$i [Int] deriving (Eq, Ord, Show, Read)"
        echo "f$i :: M.Map Int T$i -> [Int]"
        echo "f$i m = [length (show v) + k + $i | (k, v) <- M.toList m, v /= A$i k]"
    done
} >P.hs
#: run
rm -f P.hi
ghc -O0 -fforce-recomp -S P.hs -o p.s >&2
sha256sum p.s

#: ocaml ocaml-nox
#: needs ocamlopt
cat >p.ml <<'X'
let n = 700_000
let s = ref 0
let add x = s := (!s * 31 + x) mod 1_000_000_007
let () =
  let v = Array.init n (fun i -> (i, string_of_int i)) in
  for _ = 1 to 2 do Array.iter (fun (_, t) -> add (String.length t)) v done;
  for i = 1 to 5_000 do add (fst v.(i * 7919 mod n)) done;
  Printf.printf "%d\n" !s
X
ocamlopt p.ml -o p >&2
#: run
./p

#: erlang erlang-base
#: needs erl
#: run
erl -noshell -eval '
L = [{I, integer_to_list(I)} || I <- lists:seq(0, 250000)],
Walk = fun(_, B) -> lists:foldl(fun({K, V}, A) -> (A * 31 + K + length(V)) rem 1000000007 end,
                                B, L) end,
io:format("~p~n", [lists:foldl(Walk, 0, [1, 2])]), halt().'

#: elixir elixir
#: needs elixir
#: run
elixir -e '
t = :ets.new(:t, [:ordered_set])
for i <- 0..250_000, do: :ets.insert(t, {i, Integer.to_string(i)})
walk = fn _, s ->
  :ets.foldl(fn {k, v}, a -> rem(a * 31 + byte_size(v) + k, 1_000_000_007) end, s, t)
end
IO.puts(Enum.reduce(1..2, 0, walk))'

#: r-lm r-base-core
#: needs Rscript
#: run
Rscript --vanilla -e '
set.seed(1)
n <- 90000
d <- data.frame(x = rnorm(n), y = runif(n), g = factor(sample(letters[1:8], n, TRUE)))
d$z <- 3 * d$x - 2 * d$y + as.integer(d$g) + rnorm(n)
m <- lm(z ~ x + y + g + x:y, d)
print(round(coef(m), 6))
print(round(tapply(d$z, d$g, median), 6))'

#: octave octave
#: needs octave-cli
#: run
octave-cli --no-gui -q --eval '
x = reshape(mod((1:1300*1300) * 7919, 65537), 1300, 1300) / 65537;
y = x * x + x;
[q, i] = sort(y(:));
printf("%.6f %.6f %d\n", sum(q(1:1000)), trace(y), mod(sum(i(1:7:end)), 1000003));'

#: gawk gawk
#: needs gawk
#: run
gawk 'BEGIN {
    for (i = 0; i < 300000; i++) a[i] = "value " i
    for (r = 0; r < 2; r++) for (i = 0; i < 300000; i++) s = (s * 31 + length(a[i]) + i) % 1000003
    print s
}'

#: mawk mawk
#: needs mawk
#: run
mawk 'BEGIN {
    for (i = 0; i < 600000; i++) a[i] = "value " i
    for (r = 0; r < 2; r++) for (i = 0; i < 600000; i++) s = (s * 31 + length(a[i]) + i) % 1000003
    print s
}'

#: tcl tcl
#: needs tclsh
cat >p.tcl <<'X'
set l {}
for {set i 0} {$i < 300000} {incr i} { lappend l [list $i v$i] }
set s 0
foreach r {1 2} {
    foreach p $l { set s [expr {($s * 31 + [string length [lindex $p 1]]) % 1000000007}] }
}
puts $s
X
#: run
tclsh p.tcl

#: gforth gforth
#: needs gforth
cat >p.fs <<'X'
10000000 constant n
n cells allocate throw constant a
: fill-it n 0 do i i 31 * xor a i cells + ! loop ;
: sum-it n 0 do 31 * a i cells + @ + 1000000007 mod loop ;
fill-it 0 sum-it sum-it . cr bye
X
#: run
gforth -m 4M p.fs

#: pascal fpc
#: needs fpc
cat >p.pas <<'X'
program p;
{$mode objfpc}{$h+}
uses classes, sysutils;
var l: TStringList; i: longint; s: int64;
begin
  l := TStringList.create;
  for i := 0 to 600000 do l.add(inttostr(i) + ' text of this line');
  s := 0;
  for i := 0 to l.count - 1 do s := (s * 31 + length(l[i]) * i) mod 1000000007;
  for i := 0 to 5000 do s := (s * 31 + length(l[i * 7919 mod l.count])) mod 1000000007;
  writeln(s);
end.
X
fpc -O2 p.pas >/dev/null
#: run
./p

#: fortran gfortran
#: needs gfortran
cat >p.f90 <<'X'
program p
  implicit none
  integer, parameter :: n = 1900
  real(8), allocatable :: a(:, :), b(:, :)
  integer :: i, j
  allocate (a(n, n), b(n, n))
  do j = 1, n
    do i = 1, n
      a(i, j) = mod(i * 7919 + j * 104729, 65537) / 65537d0
    end do
  end do
  b = a + cshift(a, 3, 1)
  do j = 2, n - 1
    b(:, j) = b(:, j - 1) * 0.25d0 + b(:, j + 1) * 0.5d0 + a(:, j)
  end do
  print '(2f16.6)', sum(b) / n, maxval(b(:, n / 2))
end program
X
gfortran -O2 p.f90 -o p
#: run
./p

#: pypy pypy3
#: needs pypy3
#: run
pypy3 -c '
v = [[i, "s%d" % i] for i in range(500000)]
s = 0
for r in range(2):
    for n, t in v:
        s = (s * 31 + n + len(t)) % 1000000007
for i in range(5000):
    s = (s * 31 + v[i * 7919 % len(v)][0]) % 1000000007
print(s)'

#: prolog swi-prolog-nox
#: needs swipl
cat >p.pl <<'X'
:- dynamic f/2.
fill(N, N) :- !.
fill(I, N) :- atom_concat(v, I, V), assertz(f(I, V)), J is I + 1, fill(J, N).
sum(N, N, S, S) :- !.
sum(I, N, A, S) :- f(I, V), atom_length(V, L), B is (A * 31 + L) mod 1000000007, J is I + 1,
    sum(J, N, B, S).
main :- fill(0, 250000), sum(0, 250000, 0, T), write(T), nl.
X
#: run
swipl -g main -t halt p.pl

#: mono mono-mcs
#: needs mono mcs
cat >P.cs <<'X'
using System;
class P { static void Main() {
  var v = new Tuple<int, string>[700000];
  for (int i = 0; i < v.Length; i++) v[i] = Tuple.Create(i, "s" + i);
  long s = 0;
  for (int r = 0; r < 2; r++)
    foreach (var t in v) s = (s * 31 + t.Item1 + t.Item2.Length) % 1000000007;
  GC.Collect();
  for (int i = 0; i < 5000; i++) s = (s * 31 + v[(int)((long)i * 7919 % v.Length)].Item1) % 1000000007;
  Console.WriteLine(s);
} }
X
mcs P.cs
#: run
mono P.exe

#: go-program golang
#: needs go
cat >p.go <<'X'
package main

import (
	"fmt"
	"runtime"
	"sync"
)

type node struct {
	n    int
	text string
}

func main() {
	v := make([]*node, 1000000)
	for i := range v {
		v[i] = &node{i, fmt.Sprint(i)}
	}
	runtime.GC()
	var w sync.WaitGroup
	sums := make([]int, 4)
	for t := range sums {
		w.Add(1)
		go func(t int) {
			defer w.Done()
			for i := t * len(v) / 4; i < (t+1)*len(v)/4; i++ {
				sums[t] = (sums[t]*31 + v[i].n + len(v[i].text)) % 1000000007
			}
		}(t)
	}
	w.Wait()
	fmt.Println(sums)
}
X
GOCACHE=$PWD/cache go build -o p p.go
rm -rf cache
#: run
./p

#: java-serial openjdk-17-jdk-headless
#: needs java javac
structures_java
#: run
java -XX:+UseSerialGC -Xmx300m -XX:ActiveProcessorCount=2 -cp . Structures

#: java-parallel openjdk-17-jdk-headless
#: needs java javac
structures_java
#: run
java -XX:+UseParallelGC -Xmx300m -XX:ActiveProcessorCount=2 -cp . Structures

#: java-shenandoah openjdk-17-jdk-headless
#: needs java javac
structures_java
#: run
java -XX:+UseShenandoahGC -Xmx300m -XX:ActiveProcessorCount=2 -cp . Structures

#: bun bun-of-npm
#: needs bun
many_records >p.js
#: run
bun p.js

#: deno deno-of-npm
#: needs deno
many_records >p.js
#: run
DENO_DIR=$PWD/d deno run p.js
