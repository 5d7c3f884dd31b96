"""Load all links between several devices at once: every device copies to every other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from provisioning.gpu.check.device import CudaError, Device, GateTimedOut, u64
from provisioning.gpu.check.device import ptr as p
from provisioning.gpu.check.probes.base import Bench, Outcome, Skip, Tally, rate_of, unreachable
from provisioning.gpu.check.probes.several import end_on, free_on, on_device, open_peer

WARM, TIMES = 3, 10
MIN_DEVICES = 3
ALREADY_ENABLED = "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"


@dataclass(slots=True)
class CopyPair:
    """One direction between two devices, and its result.

    `stream`, `begun` and `done` belong to the source's context. Each pair has its own seed, so misdirected
    data is detected.
    """

    source: Device
    target: Device
    seed: int
    origin: int
    arrival: int
    stream: Any
    begun: Any
    done: Any
    tally: Tally = field(default_factory=Tally)

    @property
    def name(self) -> str:
        return f"GPU-{self.source.uuid} to GPU-{self.target.uuid}"


def all_pairs(bench: Bench) -> Outcome:
    """Copy between all ordered pairs of the checked device and its peers at once; verify all data.

    Measures GB/s over all pairs, from the first copy's start to the last one's end, and GB/s of each sender
    until its own last copy. Received data is not timed, since devices have separate clocks. Wrong words
    between two peers are counted separately, not as errors of the checked device.
    """
    device = bench.device
    if device.count < MIN_DEVICES:
        raise Skip("The test needs at least 2 peer GPUs.")
    # Without peer access, copies would go through host memory.
    if (ends := unreachable(device)) is not None:
        raise Skip(f"{ends[0]} has no peer access to {ends[1]}.")
    # The total sent per device equals one buffer of the other link test.
    size = bench.sizes.copy_bytes // 2 // (device.count - 1) // 256 * 256
    with ExitStack() as stack:
        devices = [
            device,
            *(open_peer(bench, stack, ordinal, ("memory",)) for ordinal in range(1, device.count)),
        ]
        for source, target in permutations(devices, 2):
            _give_access(bench, source, target)
        pairs = [
            _pair(bench, stack, source, target, size, number)
            for number, (source, target) in enumerate(permutations(devices, 2))
        ]
        begun = device.call("cuEventCreate", 0)
        stack.callback(end_on, bench, device, "cuEventDestroy", begun)
        rates: dict[str, list[float]] = {}
        try:
            _rounds(bench, pairs, begun, size, rates)
        except Skip:
            # Errors found before the abort still count.
            if not any(pair.tally.errors for pair in pairs):
                raise
            rates = {}
    return _outcome(device, pairs, rates, size)


def _rounds(
    bench: Bench, pairs: Sequence[CopyPair], begun: Any, size: int, rates: dict[str, list[float]]
) -> None:
    """Fill `rates` and the tallies of the pairs. All rounds are verified, including warm-up."""
    measured = gave_up = 0
    while measured < WARM + TIMES:
        for pair in pairs:
            with on_device(bench, pair.target):
                pair.target.clear(pair.arrival, size)
                pair.target.sync()
        took: dict[str, float] = {}
        try:
            took = _all_at_once(bench, pairs, begun, size)
        except GateTimedOut:
            gave_up += 1
        for pair in pairs:
            _verify(bench, pair, size)
        if gave_up == TIMES:
            raise Skip(
                "The host queued work too slowly for a measurement. Try again when the node is less busy."
            )
        if not took:
            continue
        measured += 1
        if measured > WARM:
            for name, value in took.items():
                rates.setdefault(name, []).append(value)
        bench.beat(measured, WARM + TIMES)


def _outcome(device: Device, pairs: Sequence[CopyPair], rates: dict[str, list[float]], size: int) -> Outcome:
    measures = {"buffer_mib": size / 2**20}
    for name, values in rates.items():
        # Results depend on the number of devices.
        measure = f"all_pairs_gb_s:{device.count}" if name == "all" else f"all_pairs_sent_gb_s:GPU-{name}"
        measures[measure] = rate_of("x", values)["x"]
    own = Tally()
    wrong = []
    for pair in pairs:
        if not pair.tally.errors:
            continue
        local = device in (pair.source, pair.target)
        if local:
            own.join(pair.tally)
        wrong.append({
            "from": f"GPU-{pair.source.uuid}", "to": f"GPU-{pair.target.uuid}", "errors": pair.tally.errors,
            "own": local, "wrong_bits": f"{pair.tally.bits:016x}",
        })  # fmt: skip
    detail = own.detail() | ({"wrong_pairs": wrong} if wrong else {})
    return Outcome(errors=own.errors, measures=measures, detail=detail)


def _give_access(bench: Bench, source: Device, target: Device) -> None:
    with on_device(bench, source):
        try:
            source.call("cuCtxEnablePeerAccess", target.context, 0)
        except CudaError as error:
            if error.name != ALREADY_ENABLED:
                raise


def _pair(bench: Bench, stack: ExitStack, source: Device, target: Device, size: int, number: int) -> CopyPair:
    """Create memory, stream and events of a pair; `stack` releases them in reverse order."""
    seed = bench.seed ^ (number + 1 << 48)
    with on_device(bench, target):
        arrival = target.alloc(size)
    stack.callback(free_on, bench, target, arrival)
    with on_device(bench, source):
        origin = source.alloc(size)
    stack.callback(free_on, bench, source, origin)
    with on_device(bench, source):
        events = []
        for _ in range(2):
            events.append(source.call("cuEventCreate", 0))
            stack.callback(end_on, bench, source, "cuEventDestroy", events[-1])
    with on_device(bench, source):
        stream = source.call("cuStreamCreate", 0)
    stack.callback(end_on, bench, source, "cuStreamDestroy", stream)
    stack.callback(end_on, bench, source, "cuStreamSynchronize", stream)
    with on_device(bench, source):
        source.launch("memory", "fill_mix", p(origin), u64(size // 8), u64(0), u64(seed), u64(0))
        source.sync()
    return CopyPair(source, target, seed, origin, arrival, stream, *events)


def _all_at_once(bench: Bench, pairs: Sequence[CopyPair], begun: Any, size: int) -> dict[str, float]:
    """Return GB/s of one round: for `all`, and by UUID for each sender. Raises `GateTimedOut`."""
    device = bench.device

    def work() -> None:
        device.call("cuEventRecord", begun, device.stream)
        for pair in pairs:
            with on_device(bench, pair.source):
                # All copies wait for the gate, so none starts before everything is queued.
                device.call("cuStreamWaitEvent", pair.stream, begun, 0)
                device.call("cuEventRecord", pair.begun, pair.stream)
                device.call(
                    "cuMemcpyPeerAsync", pair.arrival, pair.target.context, pair.origin, pair.source.context,
                    size, pair.stream,
                )  # fmt: skip
                device.call("cuEventRecord", pair.done, pair.stream)
        for pair in pairs:
            device.call("cuStreamWaitEvent", device.stream, pair.done, 0)

    rates = {"all": size * len(pairs) / device.timed(work) / 1e6}
    for source in {pair.source.uuid: pair.source for pair in pairs}.values():
        own_pairs = [pair for pair in pairs if pair.source is source]
        with on_device(bench, source):
            took = max(
                float(source.call("cuEventElapsedTime", own_pairs[0].begun, pair.done)) for pair in own_pairs
            )
        rates[source.uuid] = size * len(own_pairs) / took / 1e6
    return rates


def _verify(bench: Bench, pair: CopyPair, size: int) -> None:
    """Verify on the target itself; copying back would be another transfer."""
    target = pair.target
    with on_device(bench, target):
        log = target.fresh_log()
        words, seed = u64(size // 8), u64(pair.seed)
        target.launch("memory", "check_mix", p(pair.arrival), words, u64(0), seed, u64(0), log)
        pair.tally.add_log(target.log(), pair.name)
