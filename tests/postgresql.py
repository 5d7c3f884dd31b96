"""pytest's option `--database`: the database that the tests use.

`--database=sqlite` ignores DATABASE_URL. `--database=postgresql` uses the server of TEST_POSTGRES_URL, else a
temporary one started from installed binaries. It runs only tests that use a database, and skips them with the
reason if there is no server. `--database=any` runs all tests, on PostgreSQL if available, else on SQLite.
Without the option DATABASE_URL decides, as in production.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.ports import free_port

SERVER_START_S = 60
# Test data need not survive a crash, and JIT compilation does not pay for small tables.
CARELESS = (
    *(
        "fsync=off",
        "synchronous_commit=off",
        "full_page_writes=off",
        "wal_level=minimal",
        "max_wal_senders=0",
    ),
    *("checkpoint_timeout=1h", "autovacuum=off", "track_counts=off", "compute_query_id=off", "jit=off"),
    # Tables are small, so joins run in their written order.
    *("join_collapse_limit=1", "from_collapse_limit=1", "max_parallel_workers_per_gather=0"),
    "max_connections=200",
)
MEMORY = "/dev/shm"
ROOM_BYTES = 4 << 30
CHOSEN_BY = "BERTH_TEST_DATABASE_CHOSEN_BY"
"""Process ID of the run that named the database, for its workers."""
SOCKET = "BERTH_TEST_POSTGRES_SOCKET"
"""Folder of the socket of a server that was started here: cheaper for Django than TCP."""
WITHOUT_SERVER = pytest.StashKey[str]()
_server = ExitStack()


class Unavailable(Exception):
    """PostgreSQL is not available; the text gives the reason."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database", choices=("any", "sqlite", "postgresql"), help="the database to run the tests on"
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Iterator[None]:
    """Name the database before the settings are read. Workers of pytest-xdist inherit the environment."""
    if _in_worker():
        return (yield)
    os.environ[CHOSEN_BY] = str(os.getpid())
    database = early_config.known_args_namespace.database
    if database:
        os.environ.pop("DATABASE_URL", None)
    if database in ("any", "postgresql"):
        try:
            os.environ["DATABASE_URL"] = _server.enter_context(server())
        except Unavailable as reason:
            if database == "postgresql":
                early_config.stash[WITHOUT_SERVER] = str(reason)
    return (yield)


def _in_worker() -> bool:
    """Whether this is a worker of pytest-xdist, and not a pytest started by a test in a worker."""
    return "PYTEST_XDIST_WORKER" in os.environ and os.environ.get(CHOSEN_BY) == str(os.getppid())


def pytest_unconfigure(config: pytest.Config) -> None:
    _server.close()


def pytest_configure_node(node: object) -> None:
    """Tell a worker of pytest-xdist that there is no server."""
    node.workerinput["without_server"] = node.config.stash.get(WITHOUT_SERVER, "")  # type: ignore[attr-defined]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL, deselect tests without database, which the SQLite run has."""
    if config.getoption("database") != "postgresql":
        return
    kept = [item for item in items if uses(item) & {"_django_db_helper", "django_db_setup"}]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
    skip_reason = getattr(config, "workerinput", {}).get("without_server", "")
    if reason := skip_reason or config.stash.get(WITHOUT_SERVER, ""):
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


def uses(item: pytest.Item) -> set[str]:
    """The fixtures of a test, with pytest-django's database fixture if marked."""
    marked = {"_django_db_helper"} if item.get_closest_marker("django_db") else set()
    return marked | set(getattr(item, "fixturenames", ()))


# --- the server ---------------------------------------------------------------------------------------


@contextmanager
def server() -> Iterator[str]:
    """The URL of a test server. Raises `Unavailable`."""
    configured = os.environ.get("TEST_POSTGRES_URL", "")
    if configured:
        if problem := refusal(configured):
            raise pytest.UsageError(f"TEST_POSTGRES_URL does not answer: {problem}. Correct it or unset it.")
        yield configured
        return
    binaries, identity = find_binaries(), unprivileged()
    with tempfile.TemporaryDirectory(
        prefix="berth-postgres-", dir=_roomy_memory(), ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        if identity:
            os.chown(folder, identity["user"], identity["group"])
        initialize(binaries, folder, identity)
        with running(binaries, folder, identity) as url:
            # Workers of pytest-xdist inherit it.
            os.environ[SOCKET] = str(folder)
            yield url
        os.environ.pop(SOCKET, None)


def _roomy_memory() -> str | None:
    """The shared-memory folder if it has enough space for a cluster, else None for temporary files.

    Tables are created and emptied often, and a disk that discards freed blocks takes 2 ms per file.
    """
    try:
        room = shutil.disk_usage(MEMORY).free
    except OSError:
        return None
    return MEMORY if room >= ROOM_BYTES and os.access(MEMORY, os.W_OK) else None


def available() -> bool:
    """Whether tests have a server."""
    if os.environ.get("TEST_POSTGRES_URL"):
        return True
    try:
        find_binaries()
        unprivileged()
    except Unavailable:
        return False
    return True


def find_binaries() -> Path:
    """The folder of `initdb` and `postgres`, newest version first. Raises `Unavailable`."""
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


def unprivileged() -> dict[str, int]:
    """`user` and `group` for the server, which refuses root; empty if this is not root.

    Raises `Unavailable`.
    """
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid}
    raise Unavailable("PostgreSQL refuses to run as root and there is no user postgres or nobody")


def initialize(binaries: Path, folder: Path, identity: dict[str, int]) -> None:
    """Create an empty cluster in `folder`/data. Raises `Unavailable`."""
    options = ["-U", "berth", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    process = subprocess.run(
        [binaries / "initdb", "-D", folder / "data", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SERVER_START_S,
        **identity,
        extra_groups=[] if identity else None,
    )
    if process.returncode:
        raise Unavailable(f"initdb failed: {process.stderr.strip().splitlines()[-1:]}")


@contextmanager
def running(binaries: Path, folder: Path, identity: dict[str, int]) -> Iterator[str]:
    """The URL of the cluster in `folder`, while it runs. Raises `Unavailable`."""
    port = free_port()
    address = ["-h", "127.0.0.1", "-p", str(port), "-k", folder]
    settings = [part for item in CARELESS for part in ("-c", item)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binaries / "postgres", "-D", folder / "data", *address, *settings],
            cwd=folder,
            stdout=log,
            stderr=log,
            # Ctrl-C ends the tests first.
            start_new_session=True,
            **identity,
            extra_groups=[] if identity else None,
        )
    try:
        url = f"postgres://berth@127.0.0.1:{port}/postgres"
        wait_until_it_answers(url, process, folder / "log")
        yield url
    finally:
        # Fast shutdown: open connections are closed.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + SERVER_START_S
    while refusal(url):
        if process.poll() is not None or time.monotonic() > until:
            raise Unavailable(f"PostgreSQL did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.1)


def refusal(url: str) -> str:
    """Why no server answers at `url`; empty if one does."""
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.Error as error:
        return str(error).strip().splitlines()[0]
    return ""
