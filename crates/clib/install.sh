#!/bin/sh
# Installs uzswap's library for C: crates/clib/install.sh PREFIX [--built DIR] [--libdir NAME]
#
#   PREFIX/lib/libuzswap.so.VERSION   with links libuzswap.so.1 (the loader's) and libuzswap.so
#   PREFIX/lib/libuzswap.a            with zstd, lz4 and libdeflate in it
#   PREFIX/include/uzswap.h
#   PREFIX/include/uzswap_self.h      for programs that run without the library, too
#   PREFIX/lib/pkgconfig/uzswap.pc
#
# Builds with cargo; with --built it takes the library that is in DIR. DESTDIR goes before all
# paths, for packages. --libdir: another name than lib, as lib/x86_64-linux-gnu.
set -eu

usage() {
    sed -n '2s/^# //p' "$0" >&2
    exit 2
}

here=$(cd "$(dirname "$0")" && pwd)
# In the source tree cargo builds in its directory, elsewhere in this one.
root=$here
[ ! -e "$here/../core/Cargo.toml" ] || root=$(cd "$here/../.." && pwd)
prefix= built= libdir=lib
while [ $# -gt 0 ]; do
    case $1 in
        --built) [ $# -gt 1 ] || usage; built=$2; shift ;;
        --libdir) [ $# -gt 1 ] || usage; libdir=$2; shift ;;
        -*) usage ;;
        *) [ -z "$prefix" ] || usage; prefix=$1 ;;
    esac
    shift
done
case $prefix in
    /*) ;;
    '') usage ;;
    *) prefix=$(pwd)/$prefix ;;
esac

if [ -z "$built" ]; then
    (cd "$here" && cargo build --release)
    built=${CARGO_TARGET_DIR:-$root/target}/release
fi
version=$(sed -n 's/^#define UZSWAP_VERSION "\(.*\)"/\1/p' "$here/include/uzswap.h")
lib=${DESTDIR:-}$prefix/$libdir include=${DESTDIR:-}$prefix/include

install -d "$lib/pkgconfig" "$include"
# A program that has the old library mapped keeps it: the new file comes in its place by a rename.
install -m 755 "$built/libuzswap.so" "$lib/.libuzswap.so.new"
strip --strip-unneeded "$lib/.libuzswap.so.new"
mv -f "$lib/.libuzswap.so.new" "$lib/libuzswap.so.$version"
ln -sf "libuzswap.so.$version" "$lib/libuzswap.so.1"
ln -sf libuzswap.so.1 "$lib/libuzswap.so"
install -m 644 "$built/libuzswap.a" "$lib/libuzswap.a"
strip --strip-debug "$lib/libuzswap.a"
install -m 644 "$here/include/uzswap.h" "$here/include/uzswap_self.h" "$include"
cat >"$lib/pkgconfig/uzswap.pc" <<END
prefix=$prefix
libdir=\${prefix}/$libdir
includedir=\${prefix}/include

Name: uzswap
Description: A cache of compressed pages, and control of the managed process
URL: https://github.com/uzswap/uzswap
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -luzswap
Libs.private: -lgcc_s -lpthread -lm -ldl
END
echo "installed libuzswap.so.$version, uzswap.h, uzswap_self.h and uzswap.pc in ${DESTDIR:-}$prefix"
