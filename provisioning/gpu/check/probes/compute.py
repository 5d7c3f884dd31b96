"""Matrix products: exact to the bit against an integer reference, and how fast on random data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from provisioning.gpu.check.device import Device, u32, u64
from provisioning.gpu.check.device import ptr as p
from provisioning.gpu.check.probes.base import Bench, Outcome, Skip, Tally, rate_of, until

TILE = 128


@dataclass(frozen=True, slots=True)
class DType:
    """`code` as in operands.cu; `tile` is the side of a block's part of C; `deepest` keeps sums exact."""

    name: str
    code: int
    size: int
    unit: str
    tile: int
    since: tuple[int, int]
    deepest: int = 8192


DTYPES = {
    d.name: d
    for d in (
        DType("fp32", 0, 4, "gemm", 64, (7, 0)),
        DType("fp64", 4, 8, "gemm", 64, (7, 0)),
        DType("fp16", 1, 2, "tensor", 128, (7, 5)),
        DType("bf16", 2, 2, "tensor", 128, (8, 0)),
        DType("tf32", 0, 4, "tensor", 128, (8, 0)),
        # |sum| <= 4 * 512 = 2048: tensor cores may add FP8 products with fewer bits than fp32 has.
        DType("fp8", 3, 1, "tensor", 128, (8, 9), deepest=512),
    )
}


def supported(capability: tuple[int, int]) -> tuple[str, ...]:
    """The data types that a device of this compute capability has."""
    return tuple(d.name for d in DTYPES.values() if capability >= d.since)


def own_gemm(device: Device, d: DType, a: int, b: int, c: int, side: int, depth: int) -> None:
    """Queues C = A B^T by the check's own kernel."""
    inner = depth if d.unit == "gemm" else depth * d.size // 4
    grid = (side // d.tile, side // d.tile)
    device.launch(d.unit, f"gemm_{d.name}", p(a), p(b), p(c), u32(side), u32(inner), grid=grid)


class Exact:
    """Integer-valued operands and their exact product on the device."""

    def __init__(self, bench: Bench, d: DType, buffers: list[int]) -> None:
        self.bench, self.d = bench, d
        self.side = bench.sizes.exact_side
        self.depth = min(bench.sizes.exact_depth, d.deepest)
        self.a8, self.b8, self.want, self.a, self.b, self.c = buffers
        self.c_size = 8 if d.name == "fp64" else 4
        device, n = bench.device, self.side * self.depth
        for small, wide, seed in ((self.a8, self.a, bench.seed), (self.b8, self.b, bench.seed ^ 0xB)):
            device.launch("operands", "fill_integers", p(small), u64(n), u64(seed))
            device.launch("operands", "encode", p(wide), p(small), u64(n), u32(d.code))
        device.launch(
            "gemm", "gemm_reference", p(self.a8), p(self.b8), p(self.want), u32(self.side), u32(self.depth),
            grid=(self.side // 64, self.side // 64),
        )  # fmt: skip
        device.sync()

    @staticmethod
    def sizes(bench: Bench, d: DType) -> tuple[int, ...]:
        side, depth = bench.sizes.exact_side, min(bench.sizes.exact_depth, d.deepest)
        n, c = side * depth, side * side
        return n, n, c * 4, n * d.size, n * d.size, c * (8 if d.name == "fp64" else 4)

    def compare(self) -> None:
        """Queues the comparison of C; the result is in the device's log."""
        device, n = self.bench.device, self.side * self.side
        kernel = "compare_f64" if self.d.name == "fp64" else "compare_f32"
        device.launch("operands", kernel, p(self.c), p(self.want), u64(n), device.fresh_log())

    def once(self, multiply: Callable[[], None], tally: Tally, what: str) -> None:
        """C is filled with NaN first: a product that was never written cannot look right."""
        device = self.bench.device
        device.call("cuMemsetD8Async", self.c, 0xFF, self.side * self.side * self.c_size, device.stream)
        multiply()
        self.compare()
        tally.take(device.log(), what)

    def multiply(self) -> None:
        own_gemm(self.bench.device, self.d, self.a, self.b, self.c, self.side, self.depth)

    def multiply_blas(self) -> None:
        assert self.bench.blas is not None
        self.bench.blas.gemm(self.d.name, self.a, self.b, self.c, self.side, self.depth)


def _dtype(bench: Bench) -> DType:
    d = DTYPES[bench.params["dtype"]]
    if bench.device.capability < d.since:
        raise Skip(f"{d.name} is not offered by compute capability {bench.device.capability}")
    return d


def exact(bench: Bench) -> Outcome:
    """One product of the own kernel, one of cuBLAS where it is there, each compared bit by bit.

    Ends with a canary: one flipped bit of the result must be found at its index.
    """
    d, device, tally = _dtype(bench), bench.device, Tally()
    with device.buffers(*Exact.sizes(bench, d)) as buffers:
        work = Exact(bench, d, buffers)
        by_blas = bench.blas is not None and bench.blas.knows(d.name)
        if by_blas:
            work.once(work.multiply_blas, tally, "cublas")
        work.once(work.multiply, tally, "own kernel")
        caught = True
        if not tally.errors:
            words = work.side * work.side * work.c_size // 8
            index, bit = bench.seed % words, bench.seed // words % 64
            device.launch("memory", "flip_bit", p(work.c), u64(index), u64(bit), grid=(1, 1), threads=1)
            work.compare()
            found = device.log()
            one = index if d.name == "fp64" else index * 2 + bit // 32
            caught = (found.count, found.first) == (1, one)
    detail = {**tally.detail(), "canary_found": caught, "by": ["own kernel", "cublas"][: 1 + by_blas]}
    return Outcome(
        errors=tally.errors + (not caught), detail=detail, measures={"products": float(1 + by_blas)}
    )


def burn(bench: Bench) -> Outcome:
    """Half of the time exact products, half of it random data: speed, and the same bits in every round."""
    d, device, tally = _dtype(bench), bench.device, Tally()
    seconds = bench.seconds(10.0)
    by_blas = bench.blas is not None and bench.blas.knows(d.name)
    rounds = 0
    with device.buffers(*Exact.sizes(bench, d)) as buffers:
        work = Exact(bench, d, buffers)
        going = until(seconds / 2)
        while True:
            work.once(work.multiply_blas if by_blas else work.multiply, tally, "exact")
            rounds += 1
            if rounds % 16 == 0:
                bench.beat(rounds, 0)
            if not going():
                break
    side = bench.sizes.rate_side_wide if d.name in ("fp32", "fp64") else bench.sizes.rate_side
    n, c_bytes = side * side, side * side * (8 if d.name == "fp64" else 4)
    narrow = by_blas and d.name in ("fp16", "bf16")
    rates: list[float] = []
    with device.buffers(n * d.size, n * d.size, c_bytes, c_bytes) as (a, b, c, first):
        device.launch("operands", "fill_random", p(a), u64(n), u64(bench.seed), u32(d.code))
        device.launch("operands", "fill_random", p(b), u64(n), u64(bench.seed ^ 0xC), u32(d.code))

        def multiply(times: int) -> Callable[[], None]:
            def work() -> None:
                for _ in range(times):
                    if by_blas and bench.blas is not None:
                        bench.blas.gemm(d.name, a, b, c, side, side, narrow=narrow)
                    else:
                        own_gemm(device, d, a, b, c, side, side)

            return work

        multiply(3)()
        device.sync()
        device.call("cuMemcpyDtoDAsync", first, c, c_bytes, device.stream)
        once_ms = max(device.timed(multiply(1)), 0.001)
        times = max(1, min(bench.sizes.launches, int(200 / once_ms)))
        words = side * side * (2 if narrow else 8 if d.name == "fp64" else 4) // 4
        going = until(seconds / 2)
        while True:
            took_ms = device.timed(multiply(times))
            rates.append(2.0 * side**3 * times / took_ms / 1e9)
            device.launch("memory", "compare_words", p(c), p(first), u64(words), device.fresh_log())
            tally.take(device.log(), "run to run")
            bench.beat(rounds + len(rates), 0)
            if len(rates) >= 3 and not going():
                break
    quarter = max(1, len(rates) // 4)
    measures = {
        **rate_of(f"gemm_{d.name}_tflops" if by_blas else f"gemm_{d.name}_own_tflops", rates),
        "exact_rounds": float(rounds),
        "random_rounds": float(len(rates)),
        "last_to_first": round(sum(rates[-quarter:]) / sum(rates[:quarter]), 4),
    }
    by = bench.blas.version if by_blas and bench.blas is not None else "own kernel"
    return Outcome(errors=tally.errors, measures=measures, detail={**tally.detail(), "by": by, "side": side})


def power_steps(bench: Bench) -> Outcome:
    """From idle to full load and back, each time with exact products: finds weak supplies and regulators."""
    import time

    d = DTYPES["bf16" if bench.device.capability >= (8, 0) else "fp16"]
    cycles, tally, rounds = int(bench.params.get("cycles", 10)), Tally(), 0
    by_blas = bench.blas is not None and bench.blas.knows(d.name)
    with bench.device.buffers(*Exact.sizes(bench, d)) as buffers:
        work = Exact(bench, d, buffers)
        for cycle in range(cycles):
            going = until(bench.seconds(1.0))
            while True:
                work.once(work.multiply_blas if by_blas else work.multiply, tally, "after a step")
                rounds += 1
                if not going():
                    break
            time.sleep(bench.seconds(1.0))
            bench.beat(cycle + 1, cycles)
    return Outcome(tally.errors, {"cycles": float(cycles), "exact_rounds": float(rounds)}, tally.detail())
