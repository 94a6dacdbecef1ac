# Read by bash before each script. `set -e` says nothing of `! command`.
refused() {
    if "$@"; then
        echo "not refused: $*" >&2
        exit 1
    fi
}
