"""The phases of `make test` and of `make test-all`, in lanes that run side by side.

A lane is a list of phases that run one after the other. One lane computes; the other mostly waits for real
servers and a browser. Playwright keeps an event loop in its thread, so tests with a browser have a phase of
their own. Where a phase starts servers, a file goes to one process (`loadfile`), so that each server of a
module starts once; `tests.suite.plugin` describes the exceptions.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import postgresql

ROOT = Path(__file__).resolve().parents[2]
COMPUTES = "not engine and not browser"
SERVERS = "engine and not browser"


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    arguments: tuple[str, ...]
    """Arguments of the module."""
    budget_s: int
    """Processor time in seconds; more than that is a warning."""
    files_marked: tuple[str, ...] = ()
    """Only files with one of these marks are collected; empty: all files."""
    module: str = "pytest"
    reports: bool = False
    """Whether a module other than pytest also accepts `--junitxml=PATH`."""
    limit_s: int = 3600
    """Wall time in seconds after which the phase is ended and counts as failed."""

    def command(self, folder: Path, more: tuple[str, ...]) -> list[str]:
        """Return the argument vector, with `more` pytest arguments."""
        report = f"--junitxml={folder / self.name}.xml"
        if self.module != "pytest":
            return [sys.executable, "-m", self.module, *((report,) if self.reports else ()), *self.arguments]
        files = files_with_marks(self.files_marked) if self.files_marked and not more else []
        return [
            *(sys.executable, "-m", "pytest", "-q", "-o", "faulthandler_timeout=180"),
            report,
            f"--progress-file={folder / self.name}.progress",
            *("-o", f"cache_dir={folder / self.name}.cache"),
            *self.arguments,
            *files,
            *more,
        ]


def files_with_marks(marks: tuple[str, ...]) -> list[str]:
    """Return the test files that contain one of `marks`, relative to the root."""
    patterns = [argument for mark in marks for argument in ("-e", f"mark.{mark}")]
    grep = ["grep", "-rlw", "--include=test_*.py", *patterns, "tests"]
    return sorted(subprocess.run(grep, cwd=ROOT, capture_output=True, text=True).stdout.split())


Lanes = tuple[tuple[Phase, ...], ...]


def quick() -> Lanes:
    """`make test`: each test on one database, PostgreSQL if available.

    Tests marked `sqlite` then run on SQLite, too, beside those with servers, which use SQLite anyway.
    Without PostgreSQL everything is on SQLite already.
    """
    units = Phase("units", computing(COMPUTES, "any"), budget_s=450)
    both = postgresql.available()
    marks = f"({SERVERS}) or (sqlite and {COMPUTES})" if both else SERVERS
    servers = Phase(
        "servers",
        with_servers(marks, processes=3),
        budget_s=230,
        files_marked=("engine", "sqlite") if both else ("engine",),
    )
    browser = Phase("browser", with_servers("browser"), budget_s=60, files_marked=("browser",))
    return (units,), (servers, browser)


def full() -> Lanes:
    """`make test-all`: every test; what uses a database runs on both."""
    every = "--thorough"
    # The log of the phase has the duration of each step.
    alone = ("-n", "0", "--capture=no")
    return (
        (
            Phase("all-sqlite", (every, *computing(COMPUTES, "sqlite")), budget_s=2400),
            Phase("all-postgresql", (every, *computing(COMPUTES, "postgresql")), budget_s=1800),
        ),
        (
            Phase("all-servers", (every, *with_servers(SERVERS)), budget_s=1500, files_marked=("engine",)),
            Phase("all-browser", (every, *with_servers("browser")), budget_s=300, files_marked=("browser",)),
            Phase("ordinary", ORDINARY, budget_s=120, module="tests.ordinary_user", reports=True),
            Phase("kernel", (*alone, "tests/kernel/virtual.py"), budget_s=1200),
            Phase("compose", (*alone, "-x", "tests/compose/whole.py"), budget_s=1200),
        ),
    )


def computing(marks: str, database: str) -> tuple[str, ...]:
    return ("-n", "3", "--dist", "worksteal", "-m", marks, "--database", database)


def with_servers(marks: str, processes: int = 2) -> tuple[str, ...]:
    return ("-n", str(processes), "--dist", "loadfile", "-m", marks, "--database", "sqlite")


ORDINARY = (
    *("-q", "-n", "2", "-m", COMPUTES, "tests/security"),
    *("tests/provisioning/local/test_local_sandbox.py", "tests/provisioning/local/test_scratch.py"),
)
"""Tests of what differs if the node's user is not root: sandboxes, networks, filters, probe folders."""
