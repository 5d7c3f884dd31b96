"""Keeps an engine that hangs from occupying this worker: a slot and a circuit breaker for each pool.

The pools of all engines share the few processes of a worker. A pool has one call at a time. After several
failed or slow calls, it has none for a while; then one call tries again. A worker tries one such pool at a
time. A call that may not begin fails at once with `BackendUnavailable`, which the control plane retries.

The state is in files that the processes of a worker share. The kernel releases the locks of a killed process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from celery.signals import worker_process_init

from provisioning.errors import BackendUnavailable
from provisioning.registry import traits_of
from provisioning.traits import Plane
from provisioning.types import JsonScalar, PoolConfig

WAIT_S = 3.0
"""How long a call waits for another of its pool."""
POLL_INTERVAL_S = 0.005
SLOW_S = 10.0
"""A call that takes longer counts as failed."""
MAX_FAILURES = 3
"""Consecutive failed calls after which the circuit opens."""
FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 60.0

_in_pool_process = False


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _begin(**_: object) -> None:
    global _in_pool_process
    _in_pool_process = True


@dataclass(frozen=True, slots=True)
class Circuit:
    """The last calls of a pool: consecutive `failures`, and when the next call may begin if it is open.

    `config` identifies the pool's configuration: a changed one closes the circuit. Times are seconds since
    the epoch.
    """

    config: str = ""
    failures: int = 0
    retry_at: float = 0.0

    @property
    def open(self) -> bool:
        return self.failures >= MAX_FAILURES

    def after_failure(self, now: float) -> Circuit:
        """Return the circuit after a failed call. Each further failure doubles the pause."""
        failures = self.failures + 1
        pause_s = FIRST_PAUSE_S * 2 ** min(max(0, failures - MAX_FAILURES), 10)
        return Circuit(self.config, failures, now + min(pause_s, MAX_PAUSE_S))


@contextmanager
def call(pool: PoolConfig) -> Iterator[None]:
    """Run a driver call of the pool in its slot, in a worker's process.

    Pools of the node plane have no slots. Raises `BackendUnavailable` if the call may not begin, and
    `UnknownDriver`.
    """
    if _in_pool_process and traits_of(pool.driver).plane is Plane.ENGINE:
        with in_slot(pool, _folder()):
            yield
    else:
        yield


@contextmanager
def in_slot(pool: PoolConfig, folder: Path) -> Iterator[None]:
    """Run a driver call in the pool's slot, whose state is in `folder`. See `call`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9-]", "_", pool.slug)[:100]
    with ExitStack() as locks:
        _take_slot(locks, folder / f"{name}.slot")
        state = folder / f"{name}.json"
        circuit = _read(state, _digest(pool.config))
        if circuit.open:
            _take_trial(locks, folder / "trial", circuit)
        began = time.monotonic()
        try:
            yield
        except BackendUnavailable:
            _write(state, circuit.after_failure(time.time()))
            raise
        except Exception:
            # The engine has answered.
            _settle(state, circuit, began)
            raise
        _settle(state, circuit, began)


def _folder() -> Path:
    base = os.environ.get("BERTH_HOME") or tempfile.gettempdir()
    return Path(base) / f"engine-calls-{os.getuid()}"


def _take_slot(locks: ExitStack, path: Path) -> None:
    """Lock the pool's slot. Raises `BackendUnavailable` while another call takes longer."""
    file = locks.enter_context(path.open("a"))
    until = time.monotonic() + WAIT_S
    while not _lock(file.fileno()):
        began = os.fstat(file.fileno()).st_mtime
        # Do not wait for a call that has already taken long.
        if time.monotonic() >= until or time.time() - began > WAIT_S:
            raise BackendUnavailable(
                "The engine of this pool has not answered another call yet. The portal retries "
                "automatically. If this continues, check the engine."
            )
        time.sleep(POLL_INTERVAL_S)
    os.utime(file.fileno())


def _take_trial(locks: ExitStack, path: Path, circuit: Circuit) -> None:
    """Begin the only trial of this worker. Raises `BackendUnavailable` if it is not due."""
    if time.time() >= circuit.retry_at:
        file = locks.enter_context(path.open("a"))
        if _lock(file.fileno()):
            return
    raise BackendUnavailable(
        f"The engine of this pool did not answer {circuit.failures} times in a row. The portal tries again "
        f"at least every {MAX_PAUSE_S:.0f} s. Check the engine and the pool's settings."
    )


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _settle(state: Path, circuit: Circuit, began: float) -> None:
    """Record a call that was answered."""
    if time.monotonic() - began > SLOW_S:
        _write(state, circuit.after_failure(time.time()))
    elif circuit.failures:
        state.unlink(missing_ok=True)


def _digest(config: Mapping[str, JsonScalar]) -> str:
    return hashlib.sha256(json.dumps(dict(config), sort_keys=True).encode()).hexdigest()


def _read(path: Path, config: str) -> Circuit:
    try:
        circuit = Circuit(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return Circuit(config)
    return circuit if circuit.config == config else Circuit(config)


def _write(path: Path, circuit: Circuit) -> None:
    """Write the circuit under the pool's slot. Readers hold it, too."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(asdict(circuit)))
    draft.replace(path)
