"""Trial on this machine: suspend a CUDA process, resume it, and verify its memory."""

from __future__ import annotations

import secrets
import selectors
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from provisioning.gpu.check.process import Process, python
from provisioning.gpu.check.wire import ProtocolViolation
from provisioning.gpu.suspend.grant import Trial
from provisioning.gpu.suspend.run import ChildAnswer, GpuSnapshot, drive_processes, read_states
from provisioning.gpu.suspend.states import TargetState
from provisioning.gpu.suspend.subject import SIZE
from provisioning.machine_id import machine_id

SUBJECT_S = 60.0
NOT_TOLD = "not_told"
NO_GPU = "no_gpu"
SPLIT = "split"
IN_USE = "in_use"
OTHER_MODEL = "other_model"
SUBJECT = "subject"
NOT_SEEN = "not_seen"
NOT_SUSPENDED = "not_suspended"
STILL_THERE = "still_there"
NOT_RESUMED = "not_resumed"
ELSEWHERE = "elsewhere"
LOST = "lost"


class _TrialFailed(Exception):
    """The trial failed, with a code and details."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code)
        self.problem = f"{code}: {detail}" if detail else code


def run_trial(
    instance: str, uuid: str = "", onto: str = "", *, on_stage: Callable[[str], object] = lambda _stage: None
) -> Trial:
    """Suspend and resume a process on an idle GPU, `uuid` or the first, and `onto` another. Never raises.

    Verifies each step: the process holds memory; by NVML, it holds none after suspension; its memory is back
    on the intended GPU; and its bytes are unchanged.
    """
    on_stage("looking")
    answer = read_states()
    trial = Trial(
        uuid,
        "",
        answer.before.driver,
        onto=onto,
        at=time.time(),
        simulated=answer.simulated,
        machine=machine_id(instance),
    )
    try:
        uuid = _choose_idle(answer, uuid, onto)
        trial = replace(trial, uuid=uuid, model=answer.before.gpus[uuid].model)
        suspend_ms, resume_ms, simulated = _suspend_and_resume(uuid, onto, on_stage)
    except _TrialFailed as failed:
        return replace(trial, problem=failed.problem)
    return replace(trial, suspend_ms=suspend_ms, resume_ms=resume_ms, simulated=trial.simulated or simulated)


def _choose_idle(answer: ChildAnswer, uuid: str, onto: str) -> str:
    """Return the GPU for the trial. Raises `_TrialFailed`; GPUs in use are never touched."""
    gpus = answer.before.gpus
    if answer.failure or answer.before.problem:
        raise _TrialFailed(NOT_TOLD, answer.failure or answer.before.problem)
    if any(name and not name.startswith("GPU-") for name in (uuid, onto)):
        raise _TrialFailed(SPLIT)
    for name in filter(None, (uuid, onto)):
        if name not in gpus:
            raise _TrialFailed(NO_GPU, name)
    if not gpus:
        raise _TrialFailed(NO_GPU)
    if not answer.before.is_complete:
        raise _TrialFailed(NOT_TOLD, "NVML does not list the processes on the GPUs")
    idle = [name for name, gpu in gpus.items() if not gpu.users and name != onto]
    chosen = uuid or next(iter(idle), "")
    if chosen not in idle or (onto and gpus[onto].users):
        raise _TrialFailed(IN_USE)
    if onto and gpus[onto].model != gpus[chosen].model:
        raise _TrialFailed(OTHER_MODEL)
    return chosen


def _suspend_and_resume(uuid: str, onto: str, on_stage: Callable[[str], object]) -> tuple[int, int, bool]:
    nonce = secrets.token_hex(16)
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(filter(None, (uuid, onto)))}
    on_stage("starting")
    try:
        subject = Process("subject", python("provisioning.gpu.suspend.subject"), {"nonce": nonce}, visible)
    except OSError as error:
        raise _TrialFailed(SUBJECT, str(error)) from error
    try:
        message = _next_message(subject, nonce)
        if message["kind"] != "ready" or message["uuid"].lower() != uuid.lower():
            raise _TrialFailed(SUBJECT, str(message.get("text") or message.get("uuid")))
        pid = subject.pid
        on_stage("suspending")
        began = time.monotonic()
        down = drive_processes([pid], TargetState.SUSPENDED, memory_bytes=SIZE)
        suspend_ms = round((time.monotonic() - began) * 1000)
        # NVML reports the machine's PIDs, which may differ inside a container.
        if list(down.before.used_by([pid])) != [uuid]:
            raise _TrialFailed(NOT_SEEN, down.before.problem)
        if down.outcome is None or not down.outcome.is_reached:
            raise _TrialFailed(NOT_SUSPENDED, _problem_of(down))
        if not _is_free(down.after, uuid, pid, down.before.gpus[uuid].used):
            raise _TrialFailed(STILL_THERE)
        on_stage("resuming")
        began = time.monotonic()
        pairs = {uuid: onto, onto: uuid} if onto else {}
        up = drive_processes([pid], TargetState.RUNNING, pairs=pairs, memory_bytes=SIZE)
        resume_ms = round((time.monotonic() - began) * 1000)
        if up.outcome is None or not up.outcome.is_reached:
            raise _TrialFailed(NOT_RESUMED, _problem_of(up))
        if up.after is None or list(up.after.used_by([pid])) != [onto or uuid]:
            raise _TrialFailed(ELSEWHERE)
        on_stage("comparing")
        subject.finish()
        message = _next_message(subject, nonce)
        if not (message["kind"] == "result" and message["kept"] is True and message["works"] is True):
            raise _TrialFailed(LOST, str(message.get("text", "")))
    finally:
        subject.end()
    return suspend_ms, resume_ms, down.simulated or up.simulated


def _is_free(after: GpuSnapshot | None, uuid: str, pid: int, used_before: int) -> bool:
    """Return whether the process holds nothing on any GPU, and its memory is available to others."""
    if after is None or not after.is_complete or after.used_by([pid]):
        return False
    return uuid in after.gpus and after.gpus[uuid].used <= used_before - SIZE


def _problem_of(answer: ChildAnswer) -> str:
    failure = answer.outcome.trouble if answer.outcome else None
    return f"{failure.call} {failure.name}".strip() if failure else answer.failure


def _next_message(subject: Process, nonce: str) -> dict[str, Any]:
    """Return the subject's next message. Raises `_TrialFailed` if none comes."""
    until = time.monotonic() + SUBJECT_S
    with selectors.DefaultSelector() as selector:
        subject.register(selector)
        try:
            while not subject.closed and (left_s := until - time.monotonic()) > 0:
                for key, _ in selector.select(min(left_s, 0.5)):
                    owner, stream = key.data
                    for message in owner.read(stream, selector):
                        if message.get("nonce") == nonce:
                            return {"kept": False, "works": False, "uuid": "", **message}
        except ProtocolViolation as error:
            raise _TrialFailed(SUBJECT, str(error)) from error
        finally:
            subject.unregister(selector)
    raise _TrialFailed(
        SUBJECT, f"exit status {subject.code}; {subject.stderr.decode(errors='replace')[-200:]}"
    )
