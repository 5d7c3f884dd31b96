"""Scrub one device in a separate process, which may hang without harm.

Node tasks call `run_scrub`. `python -m provisioning.gpu.scrub_run` is its child and not for direct use.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import selectors
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from provisioning.gpu.check import hindrances
from provisioning.gpu.check.compiler import NoCubin
from provisioning.gpu.check.device import CudaError, Device, open_driver, ptr, same_device, u64
from provisioning.gpu.check.process import Process, python, reap_abandoned
from provisioning.gpu.check.wire import LineWriter, ProtocolViolation, die_with_parent
from provisioning.gpu.missing import NEWER_DRIVER, none_shown
from provisioning.gpu.nvml import GpuLost, NoDriver, NvmlProblem, session
from provisioning.gpu.scrub import DeviceFault, OutOfMemory, ScrubCallFailed, ScrubResult, ScrubVerdict, scrub

DEADLINE_S = 120.0
GPU_EXTRA = "Install the `gpu` extra: pip install 'berth[gpu]'."
MAX_ABANDONED = 16


class CudaGpu:
    """Implements `scrub.Gpu` with the check's CUDA device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._out = self._guard(device.alloc, 8)

    def _guard(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except CudaError as error:
            if error.out_of_memory:
                raise OutOfMemory(str(error)) from error
            raise (DeviceFault if error.blames_device else ScrubCallFailed)(str(error)) from error

    def memory(self) -> tuple[int, int]:
        free, total = self._guard(self._device.memory)
        return int(free), int(total)

    def alloc(self, size: int) -> int:
        return int(self._guard(self._device.alloc, size))

    def free(self, address: int) -> None:
        self._guard(self._device.free, address)

    def clear(self, address: int, size: int) -> None:
        self._guard(self._device.clear, address, size)

    def count_nonzero(self, chunks: Sequence[tuple[int, int]]) -> int:
        return self._run_kernel("count_nonzero", chunks)

    def or_reduce(self, chunks: Sequence[tuple[int, int]]) -> int:
        return self._run_kernel("or_reduce", chunks)

    def _run_kernel(self, kernel: str, chunks: Sequence[tuple[int, int]]) -> int:
        def run() -> int:
            self._device.clear(self._out, 8)
            for address, size in chunks:
                self._device.launch("scrub", kernel, ptr(address), u64(size // 8), ptr(self._out))
            result = u64(0)
            self._device.read(result, self._out)
            return int(result.value)

        return int(self._guard(run))


def run_scrub(
    uuid: str,
    *,
    baseline_mib: int | None = None,
    deadline_s: float = DEADLINE_S,
    simulate: str = "",
    nvml: str = "",
) -> ScrubResult:
    """Scrub the GPU or MIG instance `uuid`. Never raises, and returns soon after `deadline_s` at the latest.

    `simulate` and `nvml` name test doubles of CUDA and `pynvml`. The result is then marked and never `ok`.
    """
    started = time.monotonic()
    simulated = bool(simulate or nvml)
    if reap_abandoned() >= MAX_ABANDONED:
        return ScrubResult(
            uuid, ScrubVerdict.HUNG, "Earlier processes still hang in the driver. Reboot this machine."
        )
    config = {
        "uuid": uuid,
        "nonce": secrets.token_hex(16),
        "baseline_mib": baseline_mib,
        "simulate": simulate,
        "nvml": nvml,
    }
    try:
        process = Process(
            "scrub", python("provisioning.gpu.scrub_run"), config, {"CUDA_VISIBLE_DEVICES": uuid}
        )
    except OSError as error:
        return ScrubResult(
            uuid, ScrubVerdict.INCONCLUSIVE, f"The scrub could not start ({error}). Scrub this GPU again."
        )
    result = _listen(process, uuid, str(config["nonce"]), started + deadline_s)
    return replace(
        result,
        duration_ms=round((time.monotonic() - started) * 1000),
        simulated=result.simulated or simulated,
    )


def _listen(process: Process, uuid: str, nonce: str, until_s: float) -> ScrubResult:
    """Return the child's result, or a result that explains its silence."""
    result: ScrubResult | None = None
    stage, late, violation = "start", False, ""
    with selectors.DefaultSelector() as selector:
        process.register(selector)
        try:
            while not process.closed and result is None:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    late = True
                    break
                for key, _ in selector.select(min(left_s, 0.5)):
                    owner, stream = key.data
                    for message in owner.read(stream, selector):
                        if message["kind"] == "stage":
                            stage = str(message.get("stage"))
                        elif message["kind"] == "result" and message.get("nonce") == nonce:
                            result = msgspec.convert(message.get("result"), ScrubResult)
        except (ProtocolViolation, msgspec.ValidationError) as error:
            violation = str(error)
        finally:
            process.unregister(selector)
    if result is not None:
        process.wait(5.0)
    ended = process.end()
    if not ended:
        text = f"The scrub hangs in the driver at “{stage}” and cannot be stopped. Reboot this machine."
        return ScrubResult(uuid, ScrubVerdict.HUNG, text)
    if result is not None and result.uuid == uuid:
        return result
    if late:
        text = f"The scrub exceeded its time limit at “{stage}” and was stopped. Check this GPU."
        return ScrubResult(uuid, ScrubVerdict.HUNG, text)
    lines = process.stderr.decode(errors="replace").strip().splitlines()
    reason = violation or f"exit status {process.code}" + (
        f"; last output: {lines[-1][:200]}" if lines else ""
    )
    text = f"The scrub stopped at “{stage}” without a result ({reason}). Scrub this GPU again."
    return ScrubResult(uuid, ScrubVerdict.INCONCLUSIVE, text)


# -- the child ----------------------------------------------------------------------------------


def child(out: LineWriter, config: dict[str, Any]) -> ScrubResult:
    """Scrub the only visible device with NVML and CUDA. Raises `NvmlProblem` and unexpected errors."""
    uuid = config["uuid"]

    def missing(text: str, library: str, fix: str) -> ScrubResult:
        return ScrubResult(uuid, ScrubVerdict.UNAVAILABLE, f"{text} {fix}", library=library)

    with session() as driver:
        if not driver.count():
            return missing(f"{none_shown(driver.driver_version() or '')}.", "device", NEWER_DRIVER)
        gpu = driver.by_uuid(uuid)
        mode = gpu.mig_mode() if uuid.startswith("GPU-") else None
        if mode is not None and mode[0]:
            return ScrubResult(uuid, ScrubVerdict.INCONCLUSIVE, hindrances.SPLIT)

        def users() -> int | None:
            processes = gpu.processes()
            return None if processes is None else len(processes)

        present = users()
        if present is None:
            text = (
                "The driver does not list the processes on the GPU. Allow the node worker to see processes."
            )
            return ScrubResult(uuid, ScrubVerdict.INCONCLUSIVE, text)
        if present:
            # Before CUDA is opened, so a busy device is not touched.
            return scrub(_UntouchableDevice(), uuid=uuid, others=lambda: present)
        simulate = config.get("simulate", "")
        try:
            cuda = importlib.import_module(simulate).driver() if simulate else open_driver()
            device = Device(cuda)
        except ImportError as error:
            return missing(f"The CUDA bindings are missing ({error}).", "cuda-bindings", GPU_EXTRA)
        except CudaError as error:
            if error.name in hindrances.CUDA:
                text = f"{hindrances.CUDA[error.name]} ({error})"
                return ScrubResult(uuid, ScrubVerdict.INCONCLUSIVE, text)
            verdict = ScrubVerdict.FAILED if error.blames_device else ScrubVerdict.INCONCLUSIVE
            return ScrubResult(uuid, verdict, f"CUDA could not open the GPU ({error}). Check this GPU.")
        except Exception as error:
            # cuda-bindings loads its library on the first call.
            if type(error).__name__ != "DynamicLibNotFoundError":
                raise
            fix = "Install the NVIDIA driver, which includes libcuda.so.1."
            return missing("The CUDA driver library is missing.", "libcuda.so.1", fix)
        if not same_device(uuid, device.uuid):
            text = f"CUDA opened {device.uuid} instead of {uuid}. Check the output of nvidia-smi -L."
            return ScrubResult(uuid, ScrubVerdict.INCONCLUSIVE, text)
        try:
            device.load(("scrub",))
        except NoCubin as error:
            return missing(str(error), "nvidia-cuda-nvrtc", GPU_EXTRA)

        def others() -> int | None:
            # In a container NVML reports other PIDs, so this process cannot be identified.
            count = users()
            return None if count is None else max(0, count - 1)

        try:
            return scrub(
                CudaGpu(device),
                uuid=uuid,
                others=others,
                baseline_mib=config.get("baseline_mib"),
                progress=lambda stage: out.send("stage", stage=stage),
            )
        finally:
            device.close()


class _UntouchableDevice:
    """A device that must not be accessed."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("a busy device must not be accessed")


def main(argv: list[str]) -> int:
    config = json.loads(argv[1])
    die_with_parent()
    out = LineWriter(int(argv[2]))
    if config.get("nvml"):
        importlib.import_module(config["nvml"]).install()
    uuid = config["uuid"]
    try:
        result = child(out, config)
    except NoDriver as problem:
        result = ScrubResult(uuid, ScrubVerdict.UNAVAILABLE, problem.sentence, library="libnvidia-ml.so.1")
    except GpuLost as problem:
        result = ScrubResult(uuid, ScrubVerdict.FAILED, problem.sentence)
    except NvmlProblem as problem:
        result = ScrubResult(uuid, ScrubVerdict.INCONCLUSIVE, problem.sentence)
    except (CudaError, ScrubCallFailed, DeviceFault, OutOfMemory) as error:
        blames = isinstance(error, DeviceFault) or (isinstance(error, CudaError) and error.blames_device)
        verdict = ScrubVerdict.FAILED if blames else ScrubVerdict.INCONCLUSIVE
        result = ScrubResult(uuid, verdict, f"The GPU could not be scrubbed ({error}). Check this GPU.")
    except BrokenPipeError:
        raise
    except Exception as error:
        traceback.print_exc()
        text = (
            f"The scrub failed with an unexpected error ({type(error).__name__}: {error}). "
            "Scrub this GPU again."
        )
        result = ScrubResult(uuid, ScrubVerdict.INCONCLUSIVE, text[:500])
    out.send("result", nonce=config["nonce"], result=msgspec.to_builtins(result))
    return 0


if __name__ == "__main__":
    try:
        code = main(sys.argv)
    except BrokenPipeError:
        code = 1
    # Skip the interpreter's shutdown: the driver's exit handlers can block on a lost device.
    sys.stderr.flush()
    os._exit(code)
