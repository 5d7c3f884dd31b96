"""`berth node try-suspend`, `suspend` and `resume`: their actions, with messages for operators."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass

from provisioning.drivers.local.suspending import Suspender, SuspendReport
from provisioning.drivers.local.suspending import SuspendProblem as Why
from provisioning.errors import ProvisioningError
from provisioning.gpu.suspend import grant
from provisioning.gpu.suspend.grant import Trial
from provisioning.gpu.suspend.states import TargetState
from provisioning.gpu.suspend.trial import run_trial
from provisioning.host.folder import NodeFolder
from provisioning.service.console import Console, Problem
from provisioning.types import external_name

TRY = "Test it on an idle GPU: berth node try-suspend."
_GRANT = {
    grant.NOT_TRIED: f"Suspending has not been tested on this machine. {TRY}",
    grant.FAILED: f"The last test on this machine failed. {TRY}",
    grant.SIMULATED: "The last test used a simulated NVIDIA driver, so it does not count.",
    grant.OTHER_MACHINE: f"The last test ran on another machine. {TRY}",
    grant.OTHER_DRIVER: f"The NVIDIA driver has changed since the last test. {TRY}",
    grant.NO_KERNEL_MODULE: "The kernel has not loaded the NVIDIA module of the last test.",
}
_TRIAL = {
    "not_told": "The NVIDIA driver does not report what runs on the GPUs.",
    "no_gpu": "GPU not found. nvidia-smi -L lists the GPUs of this machine.",
    "split": "Whole GPUs only: MIG instances cannot be suspended.",
    "in_use": "The GPU is in use. Choose another one, or drain the node first.",
    "other_model": "The two GPUs are of different models. Choose one of the same model.",
    "subject": "The CUDA process of the test did not start.",
    "not_seen": "NVML does not show the test's process by its ID. This is expected in containers.",
    "not_suspended": "The driver did not suspend the process, which still runs.",
    "still_there": "The driver reported the process as suspended, but its memory is still on the GPU.",
    "not_resumed": "The driver did not resume the process.",
    "elsewhere": "The process resumed on the wrong GPU.",
    "lost": "The process resumed, but its memory has changed.",
}
_WHY = {
    Why.NOT_RUNNING: "The workspace does not run on this machine. Check the ID on its page.",
    Why.NO_CUDA: "No process in the workspace uses CUDA, so there is nothing to suspend.",
    Why.NOT_TOLD: "The NVIDIA driver does not report which processes use the GPUs.",
    Why.NOT_SEEN: "NVML does not show the workspace's processes by ID. This is expected in containers.",
    Why.LOST: "The driver does not list all processes of the workspace. Restart the workspace.",
    Why.OTHER_MODEL: "The last test used another GPU model. Test this model.",
    Why.SHARED: "The workspace shares a GPU. Others could take the memory it needs to resume.",
    Why.REFUSED: "The NVIDIA driver rejected the request.",
    Why.STILL_THERE: "The driver reported the workspace as suspended, but its memory is still on a GPU.",
    Why.NEVER_ENDING: "The workspace keeps starting new CUDA processes.",
}
_FINAL_STATE_TEXTS = {
    TargetState.RUNNING: "All processes of the workspace are running.",
    TargetState.SUSPENDED: "All processes of the workspace are suspended.",
    None: "Some processes may be suspended. Run this command again, or its opposite.",
}


@dataclass(frozen=True, slots=True)
class SuspendResult:
    """A line for people, and its data for programs."""

    text: str
    data: dict[str, object]


def try_suspend(folder: NodeFolder, console: Console, *, device: str, onto: str) -> SuspendResult:
    """Suspend and restore a process of our own, and save the result. Raises `Problem`."""
    _require_user(folder)
    with console.step("Trial") as step:
        trial = run_trial(folder.driver_instance, device, onto, on_stage=step.update)
        try:
            grant.save(folder.local, trial)
        except OSError as error:
            raise Problem(f"The test result cannot be written to {folder.local} ({error}).") from error
        refusal = grant.refusal(trial, driver=trial.driver, instance=folder.driver_instance)
        if refusal:
            step.mark = "✗"
        step.result = "granted" if not refusal else "not granted"
    if refusal:
        raise Problem(_not_granted(refusal, trial))
    where = f"{trial.model}, {trial.uuid}" + (f" and back on {trial.onto}" if trial.onto else "")
    message = f"Suspended in {trial.suspend_ms} ms and restored in {trial.resume_ms} ms on {where}."
    return SuspendResult(message, asdict(trial))


def suspend(folder: NodeFolder, console: Console, workspace: str) -> SuspendResult:
    """Suspend a workspace: its kernels keep their state and free the memory of its GPUs. Raises `Problem`."""
    with console.step("Suspend") as step:
        report = _run(folder, workspace, TargetState.SUSPENDED, step.update)
        _require(report, folder)
        step.result = f"{report.held_bytes / 2**30:.1f} GiB in the workspace's memory"
    message = (
        "Variables are kept, GPU memory is free, and CUDA calls wait. The workspace keeps its GPUs. "
        f"Resume it: berth node resume {workspace}"
    )
    return SuspendResult(message, _data(workspace, report))


def resume(folder: NodeFolder, console: Console, workspace: str) -> SuspendResult:
    """Resume a suspended workspace on its GPUs. Raises `Problem`."""
    with console.step("Resume") as step:
        report = _run(folder, workspace, TargetState.RUNNING, step.update)
        _require(report, folder)
        step.result = "running"
    return SuspendResult(_FINAL_STATE_TEXTS[TargetState.RUNNING], _data(workspace, report))


def _run(
    folder: NodeFolder, workspace: str, goal: TargetState, update: Callable[[str], object]
) -> SuspendReport:
    try:
        name = external_name(str(uuid.UUID(workspace)))
    except ValueError:
        raise Problem(
            f"“{workspace}” is not a workspace ID. Copy the ID from the workspace's page."
        ) from None
    _require_user(folder)
    suspending = Suspender(folder.local, folder.driver_instance)

    def print_call(call: str, pid: int) -> None:
        update(f"{call} {pid}")

    try:
        if goal is TargetState.SUSPENDED:
            return suspending.suspend(name, on_progress=print_call)
        return suspending.resume(name, on_progress=print_call)
    except ProvisioningError as error:
        raise Problem(error.message) from error
    except OSError as error:
        raise Problem(f"The state of the workspace cannot be read or written ({error}).") from error


def _require_user(folder: NodeFolder) -> None:
    """Raise `Problem` for a user other than the node's: the worker could not read the result."""
    if folder.local.exists() and (owner := folder.local.stat().st_uid) != os.geteuid():
        raise Problem(f"{folder.home} belongs to the user with ID {owner}.", "Run this as that user.")


def _data(workspace: str, report: SuspendReport) -> dict[str, object]:
    return {
        "workspace": workspace,
        "state": report.end,
        "held_bytes": report.held_bytes,
        "gpus": list(report.gpus),
        "processes": len(report.states),
    }


def _require(report: SuspendReport, folder: NodeFolder) -> None:
    """Raise `Problem` if the goal was not reached."""
    if not report.problem:
        return
    if report.problem == Why.NOT_GRANTED:
        raise Problem(_not_granted(report.detail, grant.load(folder.local)))
    if report.short is not None:
        where = "within its memory limit" if report.short.where == "workspace" else "on this machine"
        needed, free = report.short.needed_bytes / 2**30, report.short.free_bytes / 2**30
        raise Problem(
            f"Not enough memory: {needed:.1f} GiB needed, {free:.1f} GiB free {where}.",
            "Stop the workspace instead, or choose a flavor with more memory.",
        )
    suffix = f" ({report.detail})" if report.detail else ""
    end = "" if report.problem in (Why.NOT_RUNNING, Why.NO_CUDA) else f" {_FINAL_STATE_TEXTS[report.end]}"
    raise Problem(f"{_WHY[Why(report.problem)]}{suffix}{end}")


def _not_granted(refusal: str, trial: Trial | None) -> str:
    if refusal != grant.FAILED or trial is None:
        return _GRANT[refusal]
    code, _, detail = trial.problem.partition(": ")
    suffix = f" ({detail})" if detail else ""
    return f"The test failed. {_TRIAL.get(code, code)}{suffix}"
