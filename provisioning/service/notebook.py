"""The environment of notebooks: separate from the portal's, and replaced as a whole.

Each lock has its own folder, and the link `notebook` points to the current one. Workspaces that run from an
older one keep using it until they end.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from provisioning.environments.uses import in_use
from provisioning.service import venvs
from provisioning.service.console import Problem
from provisioning.service.environ import FILES

LOCK = FILES / "requirements" / "notebook.lock"
NAME = "notebook"
DEFAULTS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}


class Builder:
    """Builds in the background during other steps; `wait` returns the result as text."""

    def __init__(self, environments: Path, logs: Path, environ: Mapping[str, str]) -> None:
        self.doing = "checking"
        self._environments = environments
        self._logs = logs
        self._environ = environ
        self._result = ""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="notebook environment", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, show: Callable[[str], None]) -> str:
        """Wait until the build is done, showing its progress; raise its error."""
        while self._thread.is_alive():
            show(self.doing)
            self._thread.join(0.2)
        if self._error is not None:
            raise self._error
        return self._result

    def _work(self) -> None:
        def progress(doing: str) -> None:
            self.doing = doing

        try:
            self._result = ensure(self._environments, self._logs, self._environ, progress)
        except BaseException as error:
            self._error = error


def ensure(folder: Path, logs: Path, environ: Mapping[str, str], progress: Callable[[str], None]) -> str:
    """Create `notebook` in `folder` from the lock or BERTH_NOTEBOOK_ENV. Return the result as text.

    `logs` is the folder for pip's output.
    """
    if environ.get("BERTH_SKIP_NOTEBOOK", "") not in {"", "0"}:
        return "skipped (BERTH_SKIP_NOTEBOOK)"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    configured = environ.get("BERTH_NOTEBOOK_ENV")
    if configured:
        target = Path(configured).expanduser().resolve()
        try:
            is_venv = (target / "bin" / "python").exists()
        except PermissionError as error:
            raise Problem(
                f"BERTH_NOTEBOOK_ENV is {target}, which this user cannot open.",
                "Make it readable for this user, or unset BERTH_NOTEBOOK_ENV.",
            ) from error
        if not is_venv:
            raise Problem(
                f"BERTH_NOTEBOOK_ENV is {target}, which has no bin/python.",
                "Set it to a virtual environment, or unset it.",
            )
        point(folder / NAME, target)
        return f"{target}"
    target = folder / f"{NAME}-{venvs.fingerprint(LOCK)[:12]}"
    up_to_date = venvs.is_complete(target, LOCK)
    if not up_to_date:
        venvs.build(
            target,
            LOCK,
            log=logs / "notebook-environment.log",
            environ=dict(environ),
            progress=progress,
        )
    set_defaults(target)
    point(folder / NAME, target)
    prune(folder, keep=target)
    return f"{venvs.count_packages(LOCK)} packages{', kept' if up_to_date else ' installed'}"


def set_defaults(target: Path) -> None:
    """Set JupyterLab's defaults in this environment: no requests to the internet."""
    settings = target / "share" / "jupyter" / "lab" / "settings"
    if settings.parent.is_dir():
        settings.mkdir(exist_ok=True)
        (settings / "overrides.json").write_text(json.dumps(DEFAULTS, indent=2) + "\n")


def point(link: Path, target: Path) -> None:
    """Atomically make `link` point to `target`."""
    if link.is_symlink() and link.readlink() == target:
        return
    if link.is_dir() and not link.is_symlink():
        raise Problem(f"{link} is a folder where Berth needs a link.", "Move the folder away.")
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def prune(folder: Path, *, keep: Path) -> None:
    """Remove environments of older locks that no process uses."""
    for old in folder.glob(f"{NAME}-*"):
        if old != keep and not in_use(old):
            shutil.rmtree(old, ignore_errors=True)
