"""Tests, running under the services' account, whether the services could run under it.

`python -m portal.embedded.account_trial JSON` does not load Django, so that it starts fast. The last line of
its output is the problem.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from provisioning.service.environ import ROOT

MODULES = ("django", "redis", "celery", "gunicorn", "uvicorn", "sqlite3")


def main(question: dict[str, Any]) -> None:
    """Raise `SystemExit` with the problem, if any."""
    user, path = question["uid"], Path()
    if {*os.getresuid(), *os.getresgid()} != {user} or os.getgroups():
        raise SystemExit(f"this process could not become user {user}")
    try:
        for path in map(Path, question["reads"]):
            _read(path)
        for path in (ROOT / "portal" / "settings" / "__init__.py", ROOT / "provisioning" / "version.py"):
            _read(path)
        for path in map(Path, question["writes"]):
            with tempfile.TemporaryFile(dir=path) as file:
                file.write(b"trial")
    except OSError as error:
        raise SystemExit(f"{path} cannot be used by user {user} ({error.strerror})") from error
    for name in MODULES:
        spec = importlib.util.find_spec(name)
        if spec is None or not os.access(str(spec.origin), os.R_OK):
            raise SystemExit(f"the Python module {name} cannot be read by user {user}")
    if not os.access(question["runs"], os.X_OK):
        raise SystemExit(f"{question['runs']} cannot be run by user {user}")


def _read(path: Path) -> None:
    if path.is_dir():
        next(path.iterdir(), None)
        return
    with path.open("rb") as file:
        file.read(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
