"""Run what failed in a phase once more, alone: `python -m tests.again FOLDER PHASE ARGUMENT...`.

It stays failed. What passes alone fails beside others only: `tests.tally` says which they are, so that who
mends it knows where to look. More than `LIMIT` failures have a cause of their own, and are not run again.

Reads FOLDER/PHASE.xml and the cache of that phase; writes FOLDER/PHASE-again.xml and its .code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tally import LIMIT, cases

TIME_S = 900


def main(folder: str, phase: str, *arguments: str) -> int:
    report = Path(folder, f"{phase}.xml")
    failed = [case for case in cases(report) if case.failed]
    if not failed or len(failed) > LIMIT:
        return 0
    print(f"== {phase}: the {len(failed)} that failed once more, alone", flush=True)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-o", "faulthandler_timeout=180"),
        *("--last-failed", "--last-failed-no-failures=none", "-o", f"cache_dir={folder}/{phase}.cache"),
        f"--junitxml={folder}/{phase}-again.xml",
        *("-o", "junit_family=xunit1"),  # knows properties that a test records, which without workers matters
        *arguments,
    ]
    try:
        code = subprocess.run(
            command, timeout=TIME_S, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"-- not within {TIME_S} s")
        code = 124
    Path(folder, f"{phase}-again.code").write_text(str(code))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
