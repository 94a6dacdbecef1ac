# Compilers, linkers and build tools.

#: mold mold
#: needs mold as
object_files 4 30000
#: run
mold -shared --threads=2 o/*.o -o p
sha256sum p

#: gold binutils
#: needs ld.gold as
object_files 4 30000
#: run
ld.gold -shared o/*.o -o p
sha256sum p

#: bfd binutils
#: needs ld.bfd as
object_files 4 30000
#: run
ld.bfd -shared -Map=map o/*.o -o p
sha256sum p

#: lto g++
#: needs g++
cpp_source 60 1 >a.cpp
g++ -flto -O1 -c a.cpp -o a.o
#: run
g++ -flto=1 -O1 -shared -fPIC a.o -o p.so -Wl,--build-id=none -frandom-seed=1
objdump -d p.so | sha256sum

#: gcc-pch g++
#: needs g++
printf '#include <bits/stdc++.h>\n' >all.hpp
g++ -O0 -g -x c++-header all.hpp
echo 'std::map<std::string, std::regex> m; int f() { return m["a"].mark_count(); }' >a.cpp
#: run
g++ -O0 -g0 -include bits/stdc++.h -S a.cpp -o - | sha256sum
g++ -O0 -g -include all.hpp -S a.cpp -o - | grep -c call

#: clang-analyze clang
#: needs clang
cpp_source 60 1 >a.cpp
#: run
clang --analyze -std=c++17 -Xclang -analyzer-output=text a.cpp 2>&1 | tail -3
echo done

#: ccache ccache
#: needs ccache g++
cpp_source 20 1 >a.cpp
#: run
export CCACHE_DIR=$PWD/cache
rm -rf cache
for i in 1 2; do ccache g++ -O1 -c a.cpp -o a.o; done
sha256sum a.o

#: cmake-ninja cmake ninja-build g++
#: needs cmake ninja g++
mkdir -p src
for i in 1 2; do cpp_source 12 $i >src/$i.cpp; done
cat >CMakeLists.txt <<'X'
cmake_minimum_required(VERSION 3.13)
project(p CXX)
file(GLOB S src/*.cpp)
add_library(p STATIC ${S})
X
#: run
rm -rf b
cmake -G Ninja -S . -B b >&2
ninja -C b -j2 >&2
sha256sum b/CMakeFiles/p.dir/src/*.o

#: javac openjdk-17-jdk-headless
#: needs javac
{
    echo 'import java.util.*; class P {'
    for i in $(seq 250); do
        echo "static <T extends Comparable<T>> Map<String, List<T>> f$i(List<T> l) {"
        echo "Map<String, List<T>> m = new TreeMap<>(); l.forEach(x -> m.computeIfAbsent(x.toString() + $i,"
        echo 'k -> new ArrayList<>()).add(x)); return m; }'
    done
    echo '}'
} >P.java
#: run
javac -J-XX:+UseSerialGC -J-Xms80m -J-Xmx200m -d c P.java
cat c/*.class | sha256sum

#: go-build golang
#: needs go
printf 'package main\nimport ("fmt"; "net/http")\nfunc main() { fmt.Println(http.StatusOK) }\n' >p.go
GOCACHE=$PWD/cache go build -o /dev/null p.go
#: run
GOCACHE=$PWD/cache GOMAXPROCS=2 go build -o p p.go
./p

#: ldc ldc
#: needs ldc2
{
    echo 'import std.algorithm, std.range, std.format;'
    for i in $(seq 12); do
        echo "string f$i(int n) { return iota(n).map!(x => x * $i).filter!(x => x % 3 == 0)"
        echo '    .array.sort!((a, b) => a > b).map!(x => format("%s", x)).joiner(",").array.format!"%s"; }'
    done
} >p.d
#: run
ldc2 -O0 -c p.d -of=p.o
sha256sum p.o

#: nim nim
#: needs nim gcc
{
    echo 'import tables, strutils, sequtils, algorithm, json, re'
    for i in $(seq 60); do
        echo "proc f$i(n: int): string = toSeq(0 .. n).mapIt(it * $i).filterIt(it mod 3 == 0).join(\",\")"
        echo "echo f$i(9).len"
    done
} >p.nim
#: run
nim c --compileOnly --nimcache:c --hints:off --warnings:off p.nim >&2
cat c/@mp.nim.c | sha256sum

#: crystal crystal
#: needs crystal
echo 'require "json"; puts({1 => [2]}.to_json)' >p.cr
#: run
crystal build --no-codegen -Dwithout_openssl p.cr --no-color
echo done

#: gas binutils
#: needs as
awk 'BEGIN { for (i = 0; i < 150000; i++)
    print "l" i ": mov l" (i * 7919 % 150000) "(%rip), %rax\n jne l" (i + 9) % 150000 }' >p.s
#: run
as p.s -o p.o
sha256sum p.o

#: gfortran gfortran
#: needs gfortran
{
    for i in $(seq 60); do
        echo "subroutine s$i(a, n)"
        echo "integer :: n; real(8) :: a(n, n)"
        echo "a = matmul(a, transpose(a)) + $i; a(1:n-1, :) = a(2:n, :) * sum(a, mask = a > 0)"
        echo "end subroutine"
    done
} >p.f90
#: run
gfortran -O1 -S p.f90 -o - | sha256sum

#: esbuild esbuild-of-npm
#: needs esbuild
for i in $(seq 2000); do
    echo "export const f$i = (a: number, b = { x: a, y: [a] }) => ({ ...b, z: \`\${a}-$i\` });"
done >m.ts
for i in $(seq 6); do sed "s/f\([0-9]\)/g${i}_\1/" m.ts >m$i.ts; echo "export * from './m$i';"; done >p.ts
#: run
esbuild p.ts --bundle --minify --sourcemap --outfile=o.js --log-level=error
sha256sum o.js o.js.map

#: tsc typescript-of-npm
#: needs tsc
{
    for i in $(seq 120); do
        echo "export interface I$i<T> { a: T; b: I$i<T[]> | null; c: (x: T) => Partial<I$i<T>>; }"
        echo "export function f$i<T>(x: I$i<T>): T[] { return x.b ? x.b.a : [x.a]; }"
    done
} >p.ts
#: run
tsc --strict --declaration --target es2020 --outDir o p.ts
cat o/p.js o/p.d.ts | sha256sum
