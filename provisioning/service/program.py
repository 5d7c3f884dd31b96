"""A process to keep running, and lookup of programs."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.service.environ import ROOT


@dataclass(frozen=True, slots=True)
class Program:
    """A process to keep running.

    `answers(started_at)` returns whether the process started at that Unix time is ready; it may take about a
    second. `repair` is called when the program failed several times in a row before it was ready.
    `confinement` is the result of `confinement.plan`; empty: the program has the supervisor's rights.
    """

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    answers: Callable[[float], bool]
    after: tuple[str, ...] = ()
    port: int | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 10.0
    umask: int = 0o077
    folder: Path = ROOT
    repair: Callable[[], str] | None = None
    confinement: str = ""


def find_program(name: str) -> Path | None:
    """Return a program from this Python's environment or the search path, or None."""
    program = Path(sys.executable).parent / name
    path = str(program) if program.exists() else shutil.which(name)
    return Path(path) if path else None


def python_places() -> tuple[Path, ...]:
    """Return the folders of the program, its Python and its libraries."""
    paths = (str(ROOT), sys.prefix, sys.base_prefix, sys.executable, *sys.path)
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return tuple(Path(path) for path in (*paths, *libraries) if path and Path(path).exists())


def celery_argv(app: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of Celery with this Python, in the program's own folder."""
    # Quiet: on a full disk, writing the banner would fail and end the worker.
    return (sys.executable, "-m", "celery", "-q", "-A", app, "--workdir", str(ROOT), *arguments)


def worker_argv(app: str, name: str, queues: str) -> tuple[str, ...]:
    """Return the command line of a worker `name` (`role@node`); `queues` are separated by commas."""
    return celery_argv(
        app, "worker", "-Q", queues, "-n", name, "-c", "2", "-O", "fair",
        "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO",
    )  # fmt: skip
