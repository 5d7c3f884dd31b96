#!/bin/sh
# Prints the path of the first Python on this machine that is new enough; if there is none, prints the fix.
for candidate in "$@" python3 python3.13 python3.12 python3.11 python3.14 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        command -v "$candidate"
        exit 0
    fi
done
echo "  ! No Python 3.11 or newer was found. Install one (Debian, Ubuntu: apt install python3 python3-venv)," \
    "or name it: make up PYTHON=/path/to/python3" >&2
exit 1
