"""Runs the whole suite: everything on SQLite, and what needs a database on PostgreSQL too.

    python -m tests.run [--fast] [pytest arguments]

`--fast` leaves out the tests that start real servers or a browser. PostgreSQL is the server of
TEST_POSTGRES_URL, else one that is started from the binaries found here and thrown away afterwards,
else it is skipped, and counted. The last lines are the sum over both databases and the reasons of
all skips; the exit code is 0 when something ran and nothing failed.

Two lanes run side by side: one computes (units on both databases), the other mostly waits for real
servers and a browser. A phase prints its output when it has ended.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = "2"
PHASE_LIMIT_S = 900
SERVER_START_S = 30
UNIT = "not engine and not browser"
ENGINES = "engine and not browser"
# Playwright keeps an event loop in its thread, which no other test may meet.
BROWSER = "browser"
# What knows no database runs once.
WITHOUT_DATABASE = (
    "tests/cli",
    "tests/embedded",
    "tests/provisioning",
    "tests/workspaces/gateway",
    "tests/scheduling/engine",
    "tests/ui",
)
NO_TESTS_COLLECTED = 5
RUNNING: set[subprocess.Popen[bytes]] = set()


class Unavailable(Exception):
    """PostgreSQL cannot be had; the text says why."""


@dataclass
class Tally:
    """What came of one or more phases."""

    passed: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def skipped(self) -> int:
        return sum(self.reasons.values())

    def add(self, other: Tally) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.reasons.update(other.reasons)

    def line(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def read_report(path: Path) -> Tally:
    """The counts of one JUnit report. Errors in set-up or collection are failures."""
    tally = Tally()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        outcomes = {child.tag: child for child in case}
        if "failure" in outcomes or "error" in outcomes:
            tally.failed += 1
        elif "skipped" in outcomes:
            tally.reasons[outcomes["skipped"].get("message") or "no reason given"] += 1
        else:
            tally.passed += 1
    return tally


def run_phase(
    title: str,
    arguments: list[str],
    environment: dict[str, str],
    reports: Path,
    *,
    dist: str = "loadfile",
) -> Tally:
    """Run pytest once in processes of its own and count what came of it.

    `dist` is pytest-xdist's way to share the tests out: by default whole files go to one process, so
    that servers which a module starts are started once.
    """
    report = reports / f"{title.split(',')[0].lower()}.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        PROCESSES,
        "--dist",
        dist,
        f"--junitxml={report}",
        "-o",
        "junit_family=xunit2",
        "-o",
        "faulthandler_timeout=180",
        *arguments,
    ]
    print(f"== {title}: begins", flush=True)
    began = time.monotonic()
    output = reports / f"{report.stem}.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, start_new_session=True, stdout=log, stderr=log
        )
        RUNNING.add(process)
        try:
            code = process.wait(timeout=PHASE_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"-- {title}: not ended after {PHASE_LIMIT_S} s, so it was killed", flush=True)
            code = -signal.SIGKILL
        finally:
            RUNNING.discard(process)
    print(f"\n== {title}\n{output.read_text(errors='replace')}", flush=True)
    tally = read_report(report) if report.exists() else Tally()
    if code not in (0, NO_TESTS_COLLECTED) and not tally.failed:
        # A crash, a usage error or a failed collection that the report does not show.
        tally.failed += 1
    print(f"-- {title}: {tally.line()} in {time.monotonic() - began:.0f} s", flush=True)
    return tally


# --- PostgreSQL ---------------------------------------------------------------------------------------


def find_binaries() -> Path:
    """The folder of `initdb` and `postgres`, the newest version first. Raises `Unavailable`."""
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    candidates += sorted(installed, key=lambda path: float(path.parent.name), reverse=True)
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise Unavailable(
        "no PostgreSQL: neither TEST_POSTGRES_URL is set nor is a server installed "
        "(Debian: apt-get install postgresql)"
    )


def unprivileged_user() -> pwd.struct_passwd | None:
    """Who the server runs as: it refuses root. None when this is not root. Raises `Unavailable`."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Unavailable("PostgreSQL refuses to run as root and there is no user postgres or nobody")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def own_server() -> Iterator[str]:
    """A server for this run alone, without any care for its data. Yields its URL; raises `Unavailable`."""
    binaries, user = find_binaries(), unprivileged_user()
    identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    folder = Path(tempfile.mkdtemp(prefix="berth-postgres-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        options = ["-U", "berth", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            [binaries / "initdb", "-D", folder / "data", *options],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SERVER_START_S * 2,
            **identity,
        )
        if made.returncode:
            raise Unavailable(f"initdb failed: {made.stderr.strip().splitlines()[-1:]}")
        port = free_port()
        log = (folder / "log").open("wb")
        careless = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
        settings = [part for item in (*careless, "max_connections=200") for part in ("-c", item)]
        address = ["-h", "127.0.0.1", "-p", str(port), "-k", folder]
        process = subprocess.Popen(
            [binaries / "postgres", "-D", folder / "data", *address, *settings],
            cwd=folder,
            stdout=log,
            stderr=log,
            **identity,
        )
        url = f"postgres://berth@127.0.0.1:{port}/postgres"
        wait_until_it_answers(url, process, folder / "log")
        yield url
    finally:
        if process is not None and process.poll() is None:
            # Fast shutdown: whoever is connected is cut off.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def answers(url: str) -> str:
    """Empty when a server answers at `url`, else what it said."""
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.Error as error:
        return str(error).strip().splitlines()[0]
    return ""


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + SERVER_START_S
    while answers(url):
        if process.poll() is not None or time.monotonic() > until:
            raise Unavailable(f"PostgreSQL did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.1)


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a server that may be used for tests. Raises `Unavailable`."""
    given = os.environ.get("TEST_POSTGRES_URL", "")
    if not given:
        with own_server() as url:
            yield url
        return
    problem = answers(given)
    if problem:
        raise SystemExit(f"TEST_POSTGRES_URL does not answer: {problem}. Correct it or unset it.")
    yield given


# --- all together --------------------------------------------------------------------------------------


def run_all(arguments: list[str], *, fast: bool) -> Tally:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    total = Tally()
    with tempfile.TemporaryDirectory(prefix="berth-reports-") as folder, ThreadPoolExecutor() as lanes:
        reports = Path(folder)
        lane = [lanes.submit(compute, arguments, environment, reports)]
        if not fast:
            lane.append(lanes.submit(wait_for_others, arguments, environment, reports))
        try:
            for tally in [future.result() for future in lane]:
                total.add(tally)
        except KeyboardInterrupt:
            for process in list(RUNNING):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return total


def compute(arguments: list[str], environment: dict[str, str], reports: Path) -> Tally:
    """The lane of units: on SQLite, then on PostgreSQL."""
    total = run_phase("Units, on SQLite", ["-m", UNIT, *arguments], environment, reports, dist="worksteal")
    try:
        with postgres() as url:
            ignored = [f"--ignore={path}" for path in WITHOUT_DATABASE]
            on_postgres = {**environment, "DATABASE_URL": url}
            total.add(
                run_phase(
                    "PostgreSQL, what needs a database",
                    ["-m", UNIT, *ignored, *arguments],
                    on_postgres,
                    reports,
                    dist="worksteal",
                )
            )
    except Unavailable as reason:
        print(f"\n== PostgreSQL: skipped: {reason}", flush=True)
        total.reasons[f"PostgreSQL phase: {reason}"] += 1
    return total


def wait_for_others(arguments: list[str], environment: dict[str, str], reports: Path) -> Tally:
    """The lane of real servers, and then of a real browser."""
    ensure_notebook_environment(environment)
    # Whoever names tests means these; else only the files that have some are collected.
    engines, browser = ([], []) if arguments else (marked("engine"), marked("browser"))
    total = run_phase("Engines", ["-m", ENGINES, *engines, *arguments], environment, reports)
    total.add(run_phase("Browser", ["-m", BROWSER, *browser, *arguments], environment, reports))
    return total


def marked(mark: str) -> list[str]:
    """The test files in which something carries `mark`."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if f"mark.{mark}" in path.read_text()]


def ensure_notebook_environment(environment: dict[str, str]) -> None:
    """Build the notebook environment, unless one is named. Without it the tests that need it are skipped."""
    if "BERTH_TEST_NOTEBOOK_ENV" in environment:
        return
    command = [sys.executable, "-m", "portal.embedded", "notebook"]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode:
        print("-- no notebook environment: the tests that need one are skipped", flush=True)


def main() -> int:
    arguments = sys.argv[1:]
    fast = "--fast" in arguments
    began = time.monotonic()
    total = run_all([item for item in arguments if item != "--fast"], fast=fast)
    print(f"\nAll phases took {time.monotonic() - began:.0f} s")
    print(total.line())
    for reason, count in total.reasons.most_common():
        print(f"  skipped {count} × {reason}")
    if not total.passed:
        print("Nothing passed: look at the output above.")
    return 0 if total.passed and not total.failed else 1


if __name__ == "__main__":
    sys.exit(main())
