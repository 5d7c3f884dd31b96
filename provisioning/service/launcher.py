"""Becomes a service that ends when the supervisor does: `launcher.py PARENT_PID SIGNAL SCORE PROGRAM ARG…`.

Run as `python -I -S launcher.py`, so that it costs some ten milliseconds. A hook between fork and exec
would do the same without a second exec, and is unsafe in a process with threads. SCORE is its `oom_score_adj`
(`oom.py`), or `-` for that of its parent.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    parent, signal_number = int(argv[0]), int(argv[1])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)  # The supervisor died before the line above.
    if argv[2] != "-":
        try:
            # Written by root it is also the lowest that anything below may give itself.
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as handle:  # noqa: PTH123
                handle.write(argv[2])
        except OSError:
            pass  # it is as good a service with its parent's
    try:
        os.execvp(argv[3], argv[3:])  # noqa: S606  (that is what it is for)
    except OSError as error:
        sys.exit(f"{argv[3]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
