#!/usr/bin/env bash
# The package in a clean place: its sources packed and built by pip from what cargo has compiled,
# installed in a virtual environment of its own, and its tests run there. Needs python3 with venv,
# and PyPI for NumPy and the notebook's kernel: what cannot be had is skipped, and said.
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
packages=(numpy ipykernel jupyter_client)
# Hundreds of megabytes, for tests that take a minute.
[ -z "${UZSWAP_TEST_FULL:-}" ] || packages+=(pandas polars pyarrow scikit-learn)
env/bin/pip install --quiet "${packages[@]}" >pip.log 2>&1 ||
    echo "SKIPPED notebooks and NumPy: PyPI cannot be reached: $(tail -n 1 pip.log)"

status=0
env/bin/python "$root/python/tests/run.py" || status=$?
env/bin/pip uninstall --quiet --yes uzswap
if [ -e env/bin/uzswap ] || [ -e env/lib/uzswap/libuzswap_preload.so ] ||
    compgen -G 'env/lib/python*/site-packages/uzswap/libuzswap*' >/dev/null; then
    echo "pip uninstall has left files"
    status=1
fi
exit $status
