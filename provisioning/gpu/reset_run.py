"""Reset one idle GPU with the vendor's tool, `nvidia-smi --gpu-reset`.

A reset requires that no process uses the GPU. This is checked here again: by NVML, and by open device files,
which is the driver's criterion. The node's own sampler, watcher and inventory close NVML first (`release`). A
refused reset changed nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provisioning.gpu import release
from provisioning.gpu.nvml import DeviceGone, GpuLost, NvmlProblem, session
from provisioning.gpu.problems import DeadlineThread, NoDriver
from provisioning.gpu.reset import MAX_OUTPUT, ResetResult, ResetVerdict

TOOL = "nvidia-smi"
RELEASE_TIMEOUT_S = 20.0
"""How long to wait for processes that have the GPU open; Berth's own need some seconds to notice."""
POLL_INTERVAL_S = 0.2
NVML_S = 10.0
PERSISTENCE_S = 20.0
KILL_S = 5.0
_REFUSES = re.compile(r"in use by another|currently in use|currently being used|being used by", re.IGNORECASE)
_LINKED = re.compile(r"nvlink", re.IGNORECASE)
_NO_RIGHTS = re.compile(r"insufficient permissions|no permission", re.IGNORECASE)
_REBOOT = "Drain and reboot the node, then check the device."


class _ResetRefused(Exception):
    """Nothing was changed; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class _Gpu:
    """Location of the GPU: its PCI address and the N of /dev/nvidiaN."""

    uuid: str
    bus: str
    minor: int

    def command(self) -> str:
        return f"sudo {TOOL} --gpu-reset -i {self.bus}"


def run_reset(
    uuid: str,
    *,
    bus: str = "",
    deadline_s: float = 120.0,
    root: Path = Path("/"),
    release_s: float = RELEASE_TIMEOUT_S,
) -> ResetResult:
    """Reset the GPU, or return why not. Never raises for device errors.

    `bus` is the last known PCI address, since a lost device may not report its UUID. `root` holds /dev and
    /proc/driver.
    """
    until = time.monotonic() + deadline_s
    try:
        tool = _find_tool(bus or uuid)
        with release.release_nvml(lease_s=deadline_s) as descriptor:
            gpu = _find(root, uuid, bus)
            with _without_persistence(tool, gpu):
                _require_idle(root, gpu, until=min(until, time.monotonic() + release_s))
                return _reset(tool, gpu, descriptor, until)
    except release.ResetInProgress:
        text = "A reset of another GPU of this node is in progress or hangs. Try again after it ends."
        return ResetResult(uuid, ResetVerdict.REFUSED, text)
    except _ResetRefused as refused:
        return ResetResult(uuid, ResetVerdict.REFUSED, str(refused))


# -- before ---------------------------------------------------------------------------------------


def _find_tool(name: str) -> str:
    tool = shutil.which(TOOL)
    if tool is None:
        raise _ResetRefused(
            f"{TOOL} is not in the PATH of the node worker. Install the NVIDIA driver, or correct the PATH."
        )
    if os.geteuid() != 0:
        raise _ResetRefused(
            "A reset needs root, but the node worker runs as another user. On the node, stop the worker, run "
            f"sudo {TOOL} --gpu-reset -i {name}, start the worker, then check the device."
        )
    return tool


def _find(root: Path, uuid: str, bus: str) -> _Gpu:
    """Return the GPU as the kernel module reports it, which works even if NVML does not."""
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        try:
            lines = (folder / "information").read_text(errors="replace").splitlines()
        except OSError:
            continue
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if facts.get("GPU UUID") == uuid or (bus and folder.name.lower() == bus.lower()):
            minor = facts.get("Device Minor", "")
            if minor.isdecimal():
                return _Gpu(uuid, folder.name, int(minor))
    raise _ResetRefused(f"The driver does not list GPU {uuid} on this node. {_REBOOT}")


def _require_idle(root: Path, gpu: _Gpu, *, until: float) -> None:
    computing = _processes_by_nvml(gpu)
    if computing:
        raise _ResetRefused(_holders_sentence(computing))
    while holders := holders_of(root / f"dev/nvidia{gpu.minor}"):
        if time.monotonic() >= until:
            raise _ResetRefused(_holders_sentence(holders))
        time.sleep(POLL_INTERVAL_S)


def _processes_by_nvml(gpu: _Gpu) -> tuple[int, ...]:
    """Return PIDs of its processes, including those invisible from this PID namespace."""

    def read_pids() -> tuple[int, ...] | None:
        with session() as driver:
            processes = driver.by_uuid(gpu.uuid).processes()
        return None if processes is None else tuple(pid for pid, _ in processes)

    try:
        pids = DeadlineThread().call(read_pids, timeout_s=NVML_S)
    except (GpuLost, DeviceGone):
        # The reset exists for lost GPUs; open device files are still checked.
        return ()
    except NoDriver as problem:
        raise _ResetRefused(problem.sentence) from problem
    except NvmlProblem as problem:
        # A process that hangs in the driver has the GPU open permanently.
        raise _ResetRefused(f"{problem.message} The GPU may be in use. {_REBOOT}") from problem
    if pids is None:
        raise _ResetRefused(
            "The driver does not list the processes on the GPU. Allow the node worker to see processes."
        )
    return pids


def holders_of(device: Path) -> tuple[int, ...]:
    """Return the processes that have the device file open, under any path."""
    try:
        device_identity = _identity(device.stat())
    except OSError:
        return ()  # created by the driver on first use
    pids = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        if _has_open(process, device_identity):
            pids.append(int(process.name))
    return tuple(sorted(pids))


def _has_open(process: Path, device_identity: tuple[int, int]) -> bool:
    with contextlib.suppress(OSError), os.scandir(process / "fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if _identity(entry.stat()) == device_identity:
                    return True
    return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Return an identity shared by all nodes of a device: containers have their own nodes."""
    return (-1, status.st_rdev) if stat.S_ISCHR(status.st_mode) else (status.st_dev, status.st_ino)


def _holders_sentence(pids: tuple[int, ...]) -> str:
    names = ", ".join(f"{_name(pid)} (process {pid})" for pid in pids[:8])
    further = f" and {len(pids) - 8} more" if len(pids) > 8 else ""
    return f"The GPU is in use by {names}{further}. Stop these processes, then try again."


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown program"


# -- the reset ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _without_persistence(tool: str, gpu: _Gpu) -> Iterator[None]:
    """Switch persistence mode off during the block, since it counts as a user of the GPU."""
    before = _persistence(gpu)
    if before is not False:
        # If unknown, it stays off.
        _set_persistence(tool, gpu, on=False)
    try:
        yield
    finally:
        if before:
            _set_persistence(tool, gpu, on=True)


def _persistence(gpu: _Gpu) -> bool | None:
    def read_mode() -> bool | None:
        with session() as driver:
            return driver.by_uuid(gpu.uuid).persistence_mode()

    try:
        return DeadlineThread().call(read_mode, timeout_s=NVML_S)
    except NvmlProblem:
        return None


def _set_persistence(tool: str, gpu: _Gpu, *, on: bool) -> None:
    # On failure, the reset itself reports the problem.
    with contextlib.suppress(OSError):
        _run([tool, "-pm", str(int(on)), "-i", gpu.bus], PERSISTENCE_S)


def _reset(tool: str, gpu: _Gpu, descriptor: int, until: float) -> ResetResult:
    """Run the tool. It survives this process, and NVML stays released until it has ended."""
    try:
        code, output = _run(
            [tool, "--gpu-reset", "-i", gpu.bus], max(1.0, until - time.monotonic()), descriptor
        )
    except OSError as error:
        raise _ResetRefused(f"{TOOL} could not be started: {error}.") from error
    if code is None:
        return ResetResult(gpu.uuid, ResetVerdict.HUNG, f"The reset did not complete in time. {_REBOOT}")
    if code == 0:
        return ResetResult(gpu.uuid, ResetVerdict.DONE, f"The GPU at {gpu.bus} was reset.", output)
    return _interpret(gpu, code, output)


def _run(argv: list[str], timeout_s: float, *descriptors: int) -> tuple[int | None, str]:
    """Return exit code and output; the code is None on timeout.

    A process that hangs in the driver is abandoned.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        pass_fds=descriptors, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILL_S)
        return None, ""
    return process.returncode, output.decode(errors="replace").replace("\0", "").strip()[:MAX_OUTPUT]


def _interpret(gpu: _Gpu, code: int, output: str) -> ResetResult:
    """Interpret the tool's output: a refusal changed nothing, anything else is a failure."""
    detail = (
        f"Output of {TOOL}: {' '.join(output.split())[:400]}" if output else f"Exit code of {TOOL}: {code}."
    )
    if _LINKED.search(output):
        text = (
            "This GPU can only be reset together with the GPUs linked by NVLink. Drain the node, stop its "
            f"worker, and run sudo {TOOL} --gpu-reset without -i. {detail}"
        )
        return ResetResult(gpu.uuid, ResetVerdict.REFUSED, text, output)
    if _REFUSES.search(output):
        text = (
            "A process that the node worker cannot see uses the GPU. Find the process: "
            f"sudo fuser -v /dev/nvidia*. {detail}"
        )
        return ResetResult(gpu.uuid, ResetVerdict.REFUSED, text, output)
    if _NO_RIGHTS.search(output):
        text = (
            "The driver does not allow the node worker to reset GPUs. "
            f"Run on the node: {gpu.command()}. {detail}"
        )
        return ResetResult(gpu.uuid, ResetVerdict.REFUSED, text, output)
    return ResetResult(gpu.uuid, ResetVerdict.FAILED, f"The reset failed. {_REBOOT} {detail}", output)
