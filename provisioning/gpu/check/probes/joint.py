"""Burn several devices at the same time, to test power, cooling and chassis."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from provisioning.gpu.check.device import Device
from provisioning.gpu.check.probes.base import Bench, Outcome, Skip, Tally
from provisioning.gpu.check.probes.compute import DTYPES, ExactProduct
from provisioning.gpu.check.probes.operands import rounds_of
from provisioning.gpu.check.probes.several import end_on, free_on, on_device, open_peer

ALONE_S = 5.0
COMPARE_EVERY = 4
"""Interval of compared products: the host has to keep all devices busy."""
BUSY = 0.05
"""Minimum share of time in which the host waits for the devices; with less, they wait for the host."""


@dataclass(slots=True)
class Load:
    """Exact products on one device. `events`: start and end of two chunks."""

    device: Device
    work: ExactProduct
    flop: float
    events: list[tuple[Any, Any]]
    tally: Tally = field(default_factory=Tally)
    rates: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"GPU-{self.device.uuid}"


def joint_burn(bench: Bench) -> Outcome:
    """Burn each device alone, then all from the same moment; compare each with itself.

    Every device multiplies exact integers, and errors count for the device that made them. Results of peers
    are details: only the checked device is judged. On each device without errors, a flipped bit has to be
    found in its last product; `canary_found` says whether it was.
    """
    device, seconds = bench.device, bench.seconds(30.0)
    if device.count < 2:
        raise Skip("No peer GPU is visible.")
    with ExitStack() as stack:
        devices = [device, *(open_peer(bench, stack, ordinal) for ordinal in range(1, device.count))]
        loads = [_load(bench, stack, member) for member in devices]
        alone = {}
        for number, load in enumerate(loads):
            _burn(bench, [load], min(ALONE_S, seconds))
            alone[load.name] = _sustained(load)
            bench.beat(number + 1, len(loads) + 1)
        _burn(bench, loads, seconds)
        canaries = {load.name: _canary(bench, load) for load in loads}
    by_device = {}
    for load in loads:
        together = _sustained(load)
        by_device[load.name] = {
            "alone_tflops": round(alone[load.name], 3),
            "together_tflops": round(together, 3),
            "percent": round(100 * together / alone[load.name], 1),
            "errors": load.tally.errors,
            "canary_found": canaries[load.name],
        }
    own = by_device[loads[0].name]
    measures = {
        f"joint_burn_percent:{len(loads)}": float(own["percent"]),
        "joint_burn_alone": float(own["alone_tflops"]),
        "joint_burn_together": float(own["together_tflops"]),
    }
    detail = {**loads[0].tally.detail(), "by_device": by_device, "canary_found": own["canary_found"]}
    return Outcome(errors=loads[0].tally.errors + (not own["canary_found"]), measures=measures, detail=detail)


def _load(bench: Bench, stack: ExitStack, device: Device) -> Load:
    """Create operands, events and, if available, a cuBLAS handle on the device; `stack` releases them."""
    d, sizes = DTYPES[bench.params["dtype"]], bench.sizes
    # All bits of A in the longest sums: the round that draws the most power.
    round_ = rounds_of(d.name, d.step, sizes.burn_depth)[0]
    buffers = []
    for size in ExactProduct.sizes(d, round_, sizes.burn_side):
        with on_device(bench, device):
            buffers.append(device.alloc(size))
        stack.callback(free_on, bench, device, buffers[-1])
    events: list[Any] = []
    for _ in range(4):
        with on_device(bench, device):
            events.append(device.call("cuEventCreate", 0))
        stack.callback(end_on, bench, device, "cuEventDestroy", events[-1])
    blas = bench.blas
    with on_device(bench, device):
        if blas is not None and device is not bench.device:
            blas = blas.bind(int(device.stream))
            stack.callback(blas.close)
        work = ExactProduct(replace(bench, device=device, blas=blas), d, round_, sizes.burn_side, buffers)
    flop = 2.0 * sizes.burn_side**2 * round_.depth * sizes.joint_products
    return Load(device, work, flop, [(events[0], events[1]), (events[2], events[3])])


def _burn(bench: Bench, loads: Sequence[Load], seconds: float) -> None:
    """Keep all devices busy from the same moment on; fill their rates and tallies.

    Raises `Skip` if the host cannot queue fast enough, and `GateTimedOut` if it took too long at first.
    """
    logs = {}
    for load in loads:
        load.rates.clear()
        with on_device(bench, load.device):
            logs[load.name] = load.device.fresh_log()
    for load in loads:
        with on_device(bench, load.device):
            load.device.close_gate()
    queued = waited = 0.0
    chunk, end = 0, float("inf")
    while time.monotonic() < end or chunk < 3:
        begun = time.monotonic()
        for load in loads:
            with on_device(bench, load.device):
                _queue(load, load.events[chunk % 2], logs[load.name])
        if chunk == 0:
            # The barrier: all devices start now.
            for load in loads:
                load.device.open_gate()
            end = time.monotonic() + seconds
        else:
            queued += time.monotonic() - begun
            begun = time.monotonic()
            for load in loads:
                _wait(bench, load, load.events[(chunk - 1) % 2])
            waited += time.monotonic() - begun
            bench.beat(chunk, 0)
        chunk += 1
    for load in loads:
        _wait(bench, load, load.events[(chunk - 1) % 2])
        with on_device(bench, load.device):
            load.device.check_gate()
            load.tally.add_log(load.device.log(), "together" if len(loads) > 1 else "alone")
    if waited < BUSY * (queued + waited):
        raise Skip(
            "The host queued work too slowly to keep all devices busy. Try again when the node is less busy."
        )


def _canary(bench: Bench, load: Load) -> bool:
    """Return whether the device finds a planted bit; True for wrong products, which are errors anyway."""
    if load.tally.errors:
        return True
    with on_device(bench, load.device):
        return load.work.finds_planted_bit()


def _queue(load: Load, events: tuple[Any, Any], log: Any) -> None:
    device, work = load.device, load.work
    multiply = work.multiply
    blas = work.bench.blas
    if blas is not None and blas.supports(work.d.name):
        multiply = work.multiply_blas  # type: ignore[assignment]
    device.call("cuEventRecord", events[0], device.stream)
    for number in range(work.bench.sizes.joint_products):
        if number % COMPARE_EVERY:
            multiply()
        else:
            work.queue(multiply, log)
    device.call("cuEventRecord", events[1], device.stream)


def _wait(bench: Bench, load: Load, events: tuple[Any, Any]) -> None:
    with on_device(bench, load.device):
        load.device.call("cuEventSynchronize", events[1])
        took_ms = max(float(load.device.call("cuEventElapsedTime", *events)), 1e-6)
        load.rates.append(load.flop / took_ms / 1e9)


def _sustained(load: Load) -> float:
    """Return the median rate of the second half in TFLOP/s, when clocks have settled."""
    return statistics.median(load.rates[len(load.rates) // 2 :])
