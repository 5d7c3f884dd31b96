"""Bandwidth of memory, the PCIe link and peer links; every transferred byte is verified."""

from __future__ import annotations

from collections.abc import Callable

from provisioning.gpu.check.device import GateTimedOut, u64, uuid_text
from provisioning.gpu.check.device import ptr as p
from provisioning.gpu.check.probes.base import Bench, Outcome, Skip, Tally, rate_of, until


def _samples(bench: Bench, work: Callable[[], None], moved: int, count: int) -> list[float]:
    """Return GB/s (10^9 bytes) of `count` timings after three warm-ups."""
    for _ in range(3):
        work()
    bench.device.sync()
    values: list[float] = []
    gave_up = 0
    while len(values) < count and gave_up < count:
        try:
            values.append(moved / bench.device.timed(work) / 1e6)
        except GateTimedOut:
            gave_up += 1
        bench.beat(len(values), count)
    if len(values) < (count + 1) // 2:
        raise Skip("The host queued work too slowly for a measurement. Try again when the node is less busy.")
    return values


def _wide_grid(size: int) -> tuple[int, int]:
    """Return a grid with one thread per 64 bytes, four loads each."""
    return (max(1, min(size // 64 // 256, 2**31 - 1)), 1)


def _fill(bench: Bench, address: int, words: int) -> None:
    bench.device.launch("memory", "fill_mix", p(address), u64(words), u64(0), u64(bench.seed), u64(0))


def _check(bench: Bench, address: int, words: int, tally: Tally, label: str) -> None:
    """Check that the data of `_fill` arrived here."""
    device, log = bench.device, bench.device.fresh_log()
    device.launch("memory", "check_mix", p(address), u64(words), u64(0), u64(bench.seed), u64(0), log)
    tally.add_log(device.log(), label)


def copy(bench: Bench) -> Outcome:
    """Measure device-to-device copies by the check's kernel and by the driver; the better one counts."""
    return _memory(bench, everything=False)


def memory(bench: Bench) -> Outcome:
    """Measure copy, read and write, with the median of ten timings each."""
    return _memory(bench, everything=True)


def _memory(bench: Bench, *, everything: bool) -> Outcome:
    device, size, times, tally = bench.device, bench.sizes.copy_bytes, bench.sizes.copies, Tally()
    words, grid = size // 8, _wide_grid(size)
    measures: dict[str, float] = {"working_set_mib": 2 * size // 2**20}
    with device.buffers(size, size, 8) as (source, target, out):
        _fill(bench, source, words)

        def by_kernel() -> None:
            for _ in range(times):
                device.launch("bandwidth", "copy16", p(target), p(source), u64(size // 16), grid=grid)

        def by_driver() -> None:
            for _ in range(times):
                device.call("cuMemcpyDtoDAsync", target, source, size, device.stream)

        best = 0.0
        for name, work in (("kernel", by_kernel), ("driver", by_driver)):
            device.clear(target, size)
            rates = rate_of(f"copy_{name}_gb_s", _samples(bench, work, 2 * size * times, 10))
            measures |= rates
            best = max(best, rates[f"copy_{name}_gb_s"])
            _check(bench, target, words, tally, f"copy by {name}")
        measures["copy_gb_s"] = best
        if everything:
            device.clear(out, 8)

            def reading() -> None:
                for _ in range(times):
                    device.launch("bandwidth", "read16", p(source), u64(size // 16), p(out), grid=grid)

            measures |= rate_of("read_gb_s", _samples(bench, reading, size * times, 10))
            value = u64(1)
            device.read(value, out)
            # With an even number of passes, the XOR of all reads is zero.
            read_wrong = value.value != 0

            def writing() -> None:
                for _ in range(times):
                    device.launch(
                        "bandwidth", "write16", p(target), u64(size // 16), u64(bench.seed), grid=grid
                    )

            measures |= rate_of("write_gb_s", _samples(bench, writing, size * times, 10))
            tally.errors += read_wrong
            log = device.fresh_log()
            device.launch("bandwidth", "check16", p(target), u64(size // 16), u64(bench.seed), log)
            tally.add_log(device.log(), "write")
    return Outcome(errors=tally.errors, measures=measures, detail=tally.detail())


def pcie(bench: Bench) -> Outcome:
    """Measure copies to the device and back, long enough to observe the link under load.

    Uses pinned memory. With `both_ways`, also copies in both directions at once; that sum is only reported.
    """
    device, size, tally = bench.device, bench.sizes.pcie_bytes, Tally()
    words = size // 8
    down: list[float] = []
    up: list[float] = []
    with device.pinned(size) as host, device.buffers(size, size) as (source, target):
        _fill(bench, source, words)
        device.clear(target, size)

        def to_host() -> None:
            device.call("cuMemcpyDtoHAsync", host, source, size, device.stream)

        def to_device() -> None:
            device.call("cuMemcpyHtoDAsync", target, host, size, device.stream)

        to_host()
        to_device()
        device.sync()
        time_left = until(bench.seconds(0.5))
        while True:
            up.append(size / device.timed(to_host) / 1e6)
            down.append(size / device.timed(to_device) / 1e6)
            bench.beat(len(up), 0)
            if len(up) >= 3 and not time_left():
                break
        _check(bench, target, words, tally, "host and back")
        measures = {
            **rate_of("to_device_gb_s", down), **rate_of("to_host_gb_s", up), "buffer_mib": size // 2**20,
        }  # fmt: skip
        if bench.params.get("both_ways"):
            half = size // 2

            def both_ways() -> None:
                with device.second_stream() as other:
                    device.call("cuMemcpyDtoHAsync", host, source, half, device.stream)
                    device.call("cuMemcpyHtoDAsync", target + half, host + half, half, other)

            device.clear(target, size)
            measures |= rate_of("both_ways_gb_s", _samples(bench, both_ways, 2 * half, 5))
            # Copy the data received by the host back for verification.
            device.call("cuMemcpyHtoDAsync", target, host, half, device.stream)
            _check(bench, target, words, tally, "both ways at once")
    return Outcome(errors=tally.errors, measures=measures, detail=tally.detail())


def peers(bench: Bench) -> Outcome:
    """Measure copies to every peer and back; the slower direction counts. Peers are other visible devices.

    Then copies in both directions at once; that sum is only reported.
    """
    device, size, tally = bench.device, bench.sizes.copy_bytes // 2, Tally()
    if device.count < 2:
        raise Skip("No peer GPU is visible.")
    words = size // 8
    measures: dict[str, float] = {}
    with device.buffers(size, size) as (source, target):
        for ordinal in range(1, device.count):
            handle = device.call("cuDeviceGet", ordinal)
            uuid = uuid_text(device.call("cuDeviceGetUuid", handle).bytes)
            if not device.call("cuDeviceCanAccessPeer", device.handle, handle):
                raise Skip(f"This GPU has no peer access to GPU-{uuid}.")
            context = device.call("cuDevicePrimaryCtxRetain", handle)
            try:
                device.call("cuCtxSetCurrent", context)
                peer_address = int(device.call("cuMemAlloc", size))
                device.call("cuCtxSetCurrent", device.context)
                try:
                    device.call("cuCtxEnablePeerAccess", context, 0)

                    def copy_out(peer_address: int = peer_address, context: object = context) -> None:
                        device.call(
                            "cuMemcpyPeerAsync",
                            peer_address,
                            context,
                            source,
                            device.context,
                            size,
                            device.stream,
                        )

                    def copy_in(peer_address: int = peer_address, context: object = context) -> None:
                        device.call(
                            "cuMemcpyPeerAsync",
                            target,
                            device.context,
                            peer_address,
                            context,
                            size,
                            device.stream,
                        )

                    _fill(bench, source, words)
                    device.clear(target, size)
                    out, inbound = (
                        rate_of("x", _samples(bench, w, size, 10))["x"] for w in (copy_out, copy_in)
                    )
                    _check(bench, target, words, tally, f"peer {uuid}")
                    measures[f"peer_gb_s:GPU-{uuid}"] = min(out, inbound)

                    def both_ways(peer_address: int = peer_address, context: object = context) -> None:
                        half = size // 2
                        with device.second_stream() as other:
                            device.call(
                                "cuMemcpyPeerAsync", peer_address, context, source, device.context, half,
                                device.stream,
                            )  # fmt: skip
                            device.call(
                                "cuMemcpyPeerAsync", target + half, device.context,
                                peer_address + half, context, half, other,
                            )  # fmt: skip

                    device.clear(target, size)
                    measures |= {
                        f"peer_both_ways_gb_s:GPU-{uuid}":
                        rate_of("x", _samples(bench, both_ways, size // 2 * 2, 10))["x"]
                    }  # fmt: skip
                    device.call(
                        "cuMemcpyPeerAsync",
                        target,
                        device.context,
                        peer_address,
                        context,
                        size // 2,
                        device.stream,
                    )
                    _check(bench, target, words, tally, f"peer {uuid}, both ways at once")
                finally:
                    device.call("cuCtxSetCurrent", context)
                    device.call("cuMemFree", peer_address)
                    device.call("cuCtxSetCurrent", device.context)
            finally:
                device.call("cuDevicePrimaryCtxRelease", handle)
    return Outcome(errors=tally.errors, measures=measures, detail=tally.detail())
