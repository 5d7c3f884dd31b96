"""Move CUDA processes to one of two states through a separate process (`child.py`), with supervision."""

from __future__ import annotations

import secrets
import selectors
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from provisioning.gpu.check.process import Process, python, reap_abandoned
from provisioning.gpu.check.wire import ProtocolViolation
from provisioning.gpu.suspend.states import ProcessState, TargetState, end_of
from provisioning.gpu.suspend.walk import CallFailure, SuspendOutcome

QUERY_TIMEOUT_S = 30.0
WITHIN_S = 60.0
BYTES_PER_S = 1 << 30
"""Minimum rate at which GPU memory is moved; a slow PCIe link is several times faster."""
MAX_ABANDONED = 16
HUNG = "hung"
ENDED = "ended"
UNREADABLE = "unreadable"


class GpuUse(msgspec.Struct, frozen=True):
    """A GPU as seen by NVML. `users`: (PID, bytes or None); None if the driver does not report them."""

    model: str
    total: int
    used: int
    users: tuple[tuple[int, int | None], ...] | None


class GpuSnapshot(msgspec.Struct, frozen=True):
    """All GPUs of this node at one moment; `problem` is a sentence if NVML failed."""

    gpus: dict[str, GpuUse] = {}
    driver: str = ""
    problem: str = ""

    def used_by(self, pids: Iterable[int]) -> dict[str, dict[int, int | None]]:
        """Return the bytes used by these processes, by GPU."""
        pid_set = frozenset(pids)
        usage = {
            uuid: {pid: used for pid, used in gpu.users or () if pid in pid_set}
            for uuid, gpu in self.gpus.items()
        }
        return {uuid: users for uuid, users in usage.items() if users}

    @property
    def is_complete(self) -> bool:
        """Whether the users of every GPU are known."""
        return not self.problem and all(gpu.users is not None for gpu in self.gpus.values())


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """Actions and observations of a child. `outcome` is None if it only looked or could not begin.

    `states` are those of processes it only looked at. `failure` is the reason if there is no answer: the
    driver's or our name for a missing part, `hung`, or how the child ended.
    """

    before: GpuSnapshot = field(default_factory=GpuSnapshot)
    after: GpuSnapshot | None = None
    outcome: SuspendOutcome | None = None
    states: Mapping[int, ProcessState] = field(default_factory=dict)
    failure: str = ""
    simulated: bool = False


StepCallback = Callable[[str, int], object]


def read_states(pids: Iterable[int] = ()) -> ChildAnswer:
    """Return the users of GPUs, and the states of these processes. Never raises."""
    config = {"goal": "", "pids": sorted(set(pids)), "pairs": {}, "within_s": 0}
    return _query(config, QUERY_TIMEOUT_S, lambda _call, _pid: None)


def drive_processes(
    pids: Iterable[int],
    goal: TargetState,
    *,
    pairs: Mapping[str, str] | None = None,
    memory_bytes: int = 0,
    within_s: float | None = None,
    on_call: StepCallback = lambda _call, _pid: None,
) -> ChildAnswer:
    """Move processes to `goal`, or back on failure; never raises for driver errors.

    `memory_bytes` is their approximate GPU memory, which determines the time limit (or `within_s`); going
    back may take twice as long. If a child is killed or hangs, another one resumes the processes.
    """
    unique_pids = sorted(set(pids))
    limit_s = WITHIN_S + memory_bytes / BYTES_PER_S if within_s is None else within_s
    config = {"goal": str(goal), "pids": unique_pids, "pairs": dict(pairs or {}), "within_s": limit_s}
    answer = _query(config, limit_s * 3 + QUERY_TIMEOUT_S, on_call)
    if answer.outcome is not None or answer.failure not in (HUNG, ENDED, UNREADABLE):
        return answer
    second = _query({**config, "goal": str(TargetState.RUNNING)}, limit_s * 3 + QUERY_TIMEOUT_S, on_call)
    if second.outcome is None:
        # The state is unknown; the next call finds out.
        states = dict.fromkeys(unique_pids, ProcessState.UNKNOWN)
        outcome = SuspendOutcome(goal, None, states, CallFailure("", 0, answer.failure))
    else:
        outcome = replace(second.outcome, goal=goal, trouble=CallFailure("", 0, answer.failure))
    return replace(second, before=answer.before, outcome=outcome)


def _query(config: Mapping[str, Any], limit_s: float, on_call: StepCallback) -> ChildAnswer:
    if reap_abandoned() >= MAX_ABANDONED:
        return ChildAnswer(failure=HUNG)
    nonce = secrets.token_hex(16)
    try:
        process = Process("suspend", python("provisioning.gpu.suspend.child"), {**config, "nonce": nonce}, {})
    except OSError:
        return ChildAnswer(failure=ENDED)
    return _Listener(config, nonce, on_call).listen(process, time.monotonic() + limit_s)


class _Listener:
    """Assembles an answer from a child's messages. Only complete ones count."""

    def __init__(self, config: Mapping[str, Any], nonce: str, on_call: StepCallback) -> None:
        self._config, self._nonce, self._on_call = config, nonce, on_call
        self._answer = ChildAnswer()
        self._ended = False

    def listen(self, process: Process, until_s: float) -> ChildAnswer:
        failure = ""
        with selectors.DefaultSelector() as selector:
            process.register(selector)
            try:
                while not process.closed and not self._ended:
                    left_s = until_s - time.monotonic()
                    if left_s <= 0:
                        failure = HUNG
                        break
                    for key, _ in selector.select(min(left_s, 0.5)):
                        owner, stream = key.data
                        for message in owner.read(stream, selector):
                            self._take(message)
            except (ProtocolViolation, msgspec.ValidationError, KeyError, ValueError, TypeError):
                failure = UNREADABLE
            finally:
                process.unregister(selector)
        if self._ended:
            process.wait(5.0)
        if not process.end():
            failure = HUNG
        if self._ended and not failure:
            return self._answer
        return replace(self._answer, outcome=None, failure=failure or ENDED)

    def _take(self, message: dict[str, Any]) -> None:
        match message.pop("kind"):
            case "look":
                is_before = message.pop("when") == "before"
                snapshot = msgspec.convert(message, GpuSnapshot)
                self._answer = (
                    replace(self._answer, before=snapshot)
                    if is_before
                    else replace(self._answer, after=snapshot)
                )
            case "step":
                self._on_call(str(message["call"]), int(message["pid"]))
            case "unable":
                self._answer = replace(self._answer, failure=str(message["name"]))
            case "states":
                self._answer = replace(self._answer, states=_states(message))
            case "outcome":
                states = _states(message)
                fields = message["trouble"]
                failure = CallFailure(str(fields[0]), int(fields[1]), str(fields[2])) if fields else None
                outcome = SuspendOutcome(TargetState(self._config["goal"]), end_of(states), states, failure)
                self._answer = replace(self._answer, outcome=outcome)
            case "end":
                self._ended = message["nonce"] == self._nonce
                self._answer = replace(self._answer, simulated=bool(message["simulated"]))


def _states(message: Mapping[str, Any]) -> dict[int, ProcessState]:
    return {int(pid): ProcessState(state) for pid, state in message["states"].items()}
