"""The process that uses the device. It measures, reports line by line, and never judges.

The runner starts it in its own session, with `CUDA_VISIBLE_DEVICES` set. Messages: `hello`; for each test
`start`, any number of `beat`, `result`; and last `end` with the nonce and the number of tests.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from provisioning.gpu.check import blas_lt, hindrances, nccl
from provisioning.gpu.check.blas import Blas, BlasError, find
from provisioning.gpu.check.compiler import NoCubin
from provisioning.gpu.check.device import CudaError, Device, GateTimedOut, open_driver, same_device
from provisioning.gpu.check.nccl import NcclError
from provisioning.gpu.check.probes import bandwidth, collective, crowd, memory, two_nodes
from provisioning.gpu.check.probes.base import Bench, NotApplicable, Outcome, Skip, sizes_for
from provisioning.gpu.check.turns import PCIE_PROBES, hold_turns, on_cpus, turns_for
from provisioning.gpu.check.wire import LineWriter, die_with_parent


def _computed(module: str, name: str) -> Callable[[Bench], Outcome]:
    """Return a probe of `probes`, imported when it runs: NumPy takes half of the start."""

    def probe(bench: Bench) -> Outcome:
        run_probe: Callable[[Bench], Outcome] = getattr(
            importlib.import_module(f"provisioning.gpu.check.probes.{module}"), name
        )
        return run_probe(bench)

    return probe


PROBES: Mapping[str, Callable[[Bench], Outcome]] = {
    "canary": memory.canary,
    "residue": memory.residue,
    "address": memory.address,
    "inversions": memory.inversions,
    "modulo20": memory.modulo20,
    "bit_fade": memory.bit_fade,
    "exact": _computed("compute", "exact"),
    "burn": _computed("compute", "burn"),
    "power_steps": _computed("compute", "power_steps"),
    "functions": _computed("units", "functions"),
    "atomics": _computed("units", "atomics"),
    "shared_memory": _computed("units", "shared_memory"),
    "caches": _computed("units", "caches"),
    "copy": bandwidth.copy,
    "memory": bandwidth.memory,
    "pcie": bandwidth.pcie,
    "peers": bandwidth.peers,
    "all_pairs": crowd.all_pairs,
    "joint_burn": _computed("joint", "joint_burn"),
    "all_reduce": collective.all_reduce,
    "two_nodes": two_nodes.two_nodes,
}


def unforeseen(error: Exception) -> str:
    return f"Unexpected error: {type(error).__name__}: {error}"[:500]


def _unavailable(out: LineWriter, nonce: str, text: str, library: str, fix: str) -> None:
    out.send("unavailable", nonce=nonce, text=text, library=library, fix=fix)


def _open(out: LineWriter, config: dict[str, Any]) -> Device | None:
    """Return the device with its kernels loaded; None after reporting why not."""
    nonce = config["nonce"]
    simulate = config.get("simulate", "")
    try:
        driver = importlib.import_module(simulate).driver() if simulate else open_driver()
    except ImportError as error:
        text = f"The CUDA bindings are missing ({error}). Install the `gpu` extra: pip install 'berth[gpu]'."
        out.send("cannot", nonce=nonce, text=text)
        return None
    try:
        device = Device(driver)
    except CudaError as error:
        if error.name in ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INVALID_DEVICE"):
            text = f"CUDA does not list device {config['uuid']}."
            fix = "Check whether nvidia-smi -L lists the device, and search dmesg for NVRM lines."
            _unavailable(out, nonce, text, "device", fix)
        elif error.name in hindrances.CUDA:
            out.send("cannot", nonce=nonce, text=f"{hindrances.CUDA[error.name]} ({error})")
        else:
            out.send("broken", nonce=nonce, error=str(error), device_fault=error.blames_device)
        return None
    except Exception as error:
        # cuda-bindings loads its library on the first call.
        if type(error).__name__ != "DynamicLibNotFoundError":
            raise
        fix = "Install the NVIDIA driver, which includes libcuda.so.1."
        _unavailable(out, nonce, "The CUDA driver library is missing.", "libcuda.so.1", fix)
        return None
    # Older drivers report the parent's UUID for an instance; the environment selects the visible device.
    names = [name for name in (config["uuid"], config.get("parent", "")) if name]
    if not any(same_device(name, device.uuid) for name in names):
        out.send("cannot", nonce=nonce, text=f"CUDA opened {device.uuid} instead of {config['uuid']}.")
        return None
    try:
        device.load()
    except NoCubin as error:
        out.send("cannot", nonce=nonce, text=str(error))
        return None
    except CudaError as error:
        out.send("broken", nonce=nonce, error=str(error), device_fault=error.blames_device)
        return None
    return device


def _blas(device: Device, simulate: str) -> Blas | None:
    library = importlib.import_module(simulate).cublas() if simulate else find()
    if library is None:
        return None
    try:
        return Blas(library, int(device.stream), _fp8(device, simulate))
    except BlasError:
        return None


def _fp8(device: Device, simulate: str) -> blas_lt.BlasLt | None:
    """Return cuBLASLt if FP8 needs it and a trial product succeeds."""
    if device.capability[0] != blas_lt.MAJOR:
        return None
    library = importlib.import_module(simulate).cublas_lt() if simulate else find("cublasLt")
    if library is None:
        return None
    side = blas_lt.TRIAL_SIDE
    try:
        cublas = blas_lt.BlasLt(library, int(device.stream))
        with device.buffers(side * side, side * side, side * side * 4) as (a, b, c):
            device.clear(a, side * side)
            device.clear(b, side * side)
            cublas.gemm(a, b, c, side, side)
            device.sync()
    except BlasError:
        return None
    return cublas


def run(out: LineWriter, config: dict[str, Any]) -> None:
    """Run all tests of the plan in order; a failure is reported and does not stop the next."""
    started = time.monotonic()
    device = _open(out, config)
    if device is None:
        return
    simulate = config.get("simulate", "")
    blas = _blas(device, simulate)
    find_nccl = importlib.import_module(simulate).nccl if simulate else nccl.find
    sizes = importlib.import_module(simulate).sizes() if simulate else sizes_for(device, config["level"])
    out.send(
        "hello", nonce=config["nonce"], pid=os.getpid(), name=device.name, sms=device.sms,
        compute_capability=list(device.capability), kernels=device.kernel_origin,
        blas=blas.version if blas is not None else "", simulated=bool(simulate),
        started_ms=round((time.monotonic() - started) * 1000),
    )  # fmt: skip
    lost = ""
    turns = config.get("turns")
    for test in config["tests"]:
        name = test["name"]
        with _turn(turns, test["probe"]) as turn:
            out.send("start", test=name)
            begun = time.monotonic()
            if lost:
                message: dict[str, Any] = {
                    "state": "skipped",
                    "reason": f"An earlier test lost the CUDA context: {lost}.",
                }
            elif not turn:
                message = {
                    "state": "skipped",
                    "reason": "Other checks on this node did not finish in time. Try again later.",
                }
            else:
                bench = Bench(
                    device, sizes, config["seed"], _beats(out, name), blas, test.get("params", {}), find_nccl
                )  # fmt: skip
                message = _outcome(test["probe"], bench)
            if message.get("device_fault"):
                lost = message["error"]
            out.send("result", test=name, duration_ms=round((time.monotonic() - begun) * 1000), **message)
    out.send("end", nonce=config["nonce"], tests=len(config["tests"]))


@contextmanager
def _turn(turns: dict[str, Any] | None, probe: str) -> Iterator[bool]:
    """Yield whether the probe may run; meanwhile no other check can distort its measurements."""
    if turns is None:
        yield True
        return
    needed_turns = turns_for(probe, turns["link"], alone=turns["alone"])
    with hold_turns(Path(turns["folder"]), needed_turns) as turn, ExitStack() as stack:
        if probe in PCIE_PROBES:
            stack.enter_context(on_cpus(turns["cpus"]))
        yield turn


def _beats(out: LineWriter, name: str) -> Callable[[int, int], None]:
    last = 0.0

    def beat(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 0.25:
            last = now
            out.send("beat", test=name, done=done, of=total)

    return beat


def _outcome(probe: str, bench: Bench) -> dict[str, Any]:
    """Return the result of one probe, including any error."""
    try:
        outcome = PROBES[probe](bench)
    except NotApplicable as reason:
        return {"state": "absent", "reason": str(reason)}
    except (Skip, GateTimedOut) as reason:
        return {"state": "skipped", "reason": str(reason)}
    except CudaError as error:
        return {"state": "error", "error": str(error), "device_fault": error.blames_device}
    except (BlasError, NcclError, collective.PeerFailed) as error:
        return {"state": "error", "error": str(error), "device_fault": False}
    except BrokenPipeError:
        raise
    except Exception as error:
        # An unexpected error proves nothing about the device; other tests continue.
        return {"state": "error", "error": unforeseen(error), "device_fault": False}
    return {
        "state": "done",
        "errors": outcome.errors,
        "measures": dict(outcome.measures),
        "detail": dict(outcome.detail),
    }


def main(argv: list[str]) -> int:
    die_with_parent()
    out, config = LineWriter(int(argv[2])), json.loads(argv[1])
    try:
        run(out, config)
    except BrokenPipeError:
        raise
    except Exception as error:
        traceback.print_exc()
        out.send("cannot", nonce=config["nonce"], text=unforeseen(error))
    return 0


if __name__ == "__main__":
    try:
        code = main(sys.argv)
    except BrokenPipeError:
        code = 1
    sys.stderr.flush()
    # The context ends with the process; the driver's exit handlers could block on a broken device.
    os._exit(code)
