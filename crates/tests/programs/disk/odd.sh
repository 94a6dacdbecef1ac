# Odd offsets, the ends of the disk, two connections: by libnbd's bindings.
python3 "$PROGRAMS/odd.py" | grep done
