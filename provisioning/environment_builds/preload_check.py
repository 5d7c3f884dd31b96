"""Determines in a build's sandbox which modules of an environment's JupyterLab can be preloaded.

Run as `python preload_check.py FILE RECIPE` with the environment's own Python; RECIPE is the JSON of a
`provisioning.preloading.Recipe`. Writes JSON to FILE: `possible`, whether the modules can be imported without
starting a thread, and `modules`, further modules that the server imports with its extensions and that can be
preloaded too. Uses only the standard library and the environment's JupyterLab.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 60
MAX_MODULES = 400
NAME = re.compile(r"[A-Za-z]\w*(\.[A-Za-z_]\w*)*")


def main() -> None:
    if sys.argv[1] == "--extensions":
        print(json.dumps(loaded_by_extensions(json.loads(sys.argv[2]))))
        return
    if sys.argv[1] == "--import":
        load(json.loads(sys.argv[2]))
        print(json.dumps(len(os.listdir("/proc/self/task")) == 1))  # noqa: PTH208
        return
    recipe = json.loads(sys.argv[2])
    own = [*recipe["kernel_modules"], *recipe["modules"]]
    answer = run("--extensions", recipe)
    extra_modules = answer if isinstance(answer, list) else []
    preload = {"possible": True, "modules": extra_modules}
    if not run("--import", [*own, *extra_modules]):
        preload = {"possible": run("--import", own) is True, "modules": []}
    Path(sys.argv[1]).write_text(json.dumps(preload))


def run(mode: str, argument: object) -> object:
    """Return the last line of this program's output in a separate process, or None on failure."""
    try:
        process = subprocess.run(
            [sys.executable, __file__, mode, json.dumps(argument)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=True,
        )
        return json.loads(process.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def load(names: list[str]) -> None:
    """Import the modules that exist, as `app_host.py` does."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: S112 - preloading is optional
            continue


def loaded_by_extensions(recipe: dict[str, list[str]]) -> list[str]:
    for name in recipe["blocked"]:
        sys.modules[name] = None  # type: ignore[assignment]  # blocks the import
    load([*recipe["kernel_modules"], *recipe["modules"]])
    before = set(sys.modules)
    # Imported here, because the modules that it loads are measured.
    from jupyterlab.labapp import LabApp  # type: ignore[import-not-found]

    LabApp.initialize_server(argv=["--no-browser", "--ServerApp.log_level=ERROR", "--allow-root"])
    new = (name for name in set(sys.modules) - before if NAME.fullmatch(name) and sys.modules[name])
    return sorted(new)[:MAX_MODULES]


if __name__ == "__main__":
    main()
