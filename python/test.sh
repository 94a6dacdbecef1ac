#!/usr/bin/env bash
# The package in a clean place: its sources packed and built by pip from what cargo has compiled,
# installed in a virtual environment of its own, and its tests run there. Needs python3 with venv,
# and PyPI for NumPy, pandas and the notebook's kernel: what cannot be had is skipped, and said.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/uzswap-python-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# Nothing of the source tree is found by accident, and nothing of the user's is used.
cd "$scratch"
unset PYTHONPATH UZSWAP_PRELOAD UZSWAP_COMMAND
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONNOUSERSITE=1

if ! python3 -m venv env >venv.log 2>&1; then
    echo "SKIPPED python: python3 makes no virtual environment: $(tail -n 1 venv.log)"
    exit 0
fi
# From the archive of the sources, as from a registry: what is missing in it fails here.
sources=$(PYTHONPATH=$root/python python3 -c 'import backend; print(backend.build_sdist("."))')
env/bin/pip install --quiet --no-index --config-settings=bin="$root/target/release" "./$sources"
# Nothing is compiled for them, which would take too long.
get() {
    env/bin/pip install --quiet --only-binary=:all: "$@" >pip.log 2>&1 ||
        echo "SKIPPED what needs one of $*: PyPI does not give it: $(tail -n 1 pip.log)"
}
get numpy ipykernel jupyter_client
get pandas

status=0
if [ -n "${UZSWAP_TEST_FULL:-}" ]; then
    # Hundreds of megabytes, for tests that take a minute.
    get polars pyarrow scikit-learn
    get mypy
    get ziglang cargo-zigbuild
    if [ -x env/bin/mypy ]; then
        env/bin/mypy --strict --cache-dir mypy "$root/python/uzswap" || status=1
    fi
fi
env/bin/python "$root/python/tests/run.py" || status=$?
env/bin/pip uninstall --quiet --yes uzswap
if [ -e env/bin/uzswap ] || [ -e env/lib/uzswap/libuzswap_preload.so ] ||
    compgen -G 'env/lib/python*/site-packages/uzswap/libuzswap*' >/dev/null; then
    echo "pip uninstall has left files"
    status=1
fi
exit $status
