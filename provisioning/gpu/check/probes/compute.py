"""Matrix products: bit-exact with integers, checked by the CPU with random values, and their speed."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from provisioning.gpu.check.compiler import units_of
from provisioning.gpu.check.device import Device, u32, u64
from provisioning.gpu.check.device import ptr as p
from provisioning.gpu.check.probes import reference
from provisioning.gpu.check.probes.base import Bench, Outcome, Skip, Tally, rate_of, until
from provisioning.gpu.check.probes.operands import ProductRound, rounds_of

TILE = 128


@dataclass(frozen=True, slots=True)
class DType:
    """Data type. `code` as in operands.cu; `tile` is the side of a block's tile of C, `step` that of K.

    `bits` is the size of an operand. Integers add up in int32, all others in FP32 or FP64.
    """

    name: str
    code: int
    bits: int
    unit: str
    tile: int
    since: tuple[int, int]
    step: int

    @property
    def integer(self) -> bool:
        return self.name == "int8"

    @property
    def c_size(self) -> int:
        return 8 if self.name == "fp64" else 4

    @property
    def fill_byte(self) -> int:
        """Byte that fills C before a product: NaN, or a number below any sum of integers."""
        return 0x80 if self.integer else 0xFF

    def bytes_of(self, elements: int) -> int:
        return elements * self.bits // 8

    def depth_argument(self, depth: int) -> int:
        """Return the kernel's argument for the length of the sums: 32-bit words, or elements if plain."""
        return depth if self.unit == "gemm" else depth * self.bits // 32

    def rate(self, suffix: str = "") -> str:
        """Return the name of a rate: `gemm_bf16_own_tflops`, `gemm_int8_own_tops`."""
        return f"gemm_{self.name}{suffix}_{'tops' if self.integer else 'tflops'}"


DTYPES = {
    d.name: d
    for d in (
        DType("fp32", 0, 32, "gemm", 64, (7, 0), step=16),
        DType("fp64", 4, 64, "gemm", 64, (7, 0), step=16),
        DType("fp16", 1, 16, "tensor", 128, (7, 5), step=32),
        DType("bf16", 2, 16, "tensor", 128, (8, 0), step=32),
        DType("tf32", 5, 32, "tensor", 128, (8, 0), step=16),
        DType("fp8", 3, 8, "tensor", 128, (8, 9), step=64),
        DType("int8", 6, 8, "tensor", 128, (7, 5), step=64),
        DType("fp4", 7, 4, "fp4", 128, (12, 0), step=128),
    )
}


def supported(capability: tuple[int, int]) -> tuple[str, ...]:
    """Return the data types that a device of this compute capability supports."""
    return tuple(d.name for d in DTYPES.values() if capability >= d.since)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One of the check's own matrix kernels: `unit` and `name` in its sources, `by` for the report."""

    unit: str
    name: str
    by: str


def own_kernels(device: Device, d: DType) -> tuple[Kernel, ...]:
    """Return the check's own kernels of a type, fastest first. They exercise different circuits."""
    plain = Kernel(d.unit, f"gemm_{d.name}", "own kernel")
    if d.unit != "tensor" or "hopper" not in units_of(device.capability):
        return (plain,)
    return Kernel("hopper", f"gemm_{d.name}_wg", "own kernel (wgmma)"), plain


def own_gemm(
    device: Device, d: DType, a: int, b: int, c: int, side: int, depth: int, *,
    where: int = 0, kernel: Kernel | None = None,
) -> None:  # fmt: skip
    """Queue C = A B^T with `kernel`, by default the fastest of the check's own.

    `where`: buffer with one word per tile of C for the SM that computed it; 0 omits it.
    """
    kernel = kernel or own_kernels(device, d)[0]
    grid = (side // d.tile, side // d.tile)
    device.launch(
        kernel.unit,
        kernel.name,
        p(a),
        p(b),
        p(c),
        u32(side),
        u32(d.depth_argument(depth)),
        p(where),
        grid=grid,
    )


class ExactProduct:
    """Integer-valued operands of one round and their exact product, on the device."""

    def __init__(self, bench: Bench, d: DType, round_: ProductRound, side: int, buffers: list[int]) -> None:
        self.bench, self.d, self.round, self.side = bench, d, round_, side
        self.a64, self.b64, self.want, self.a, self.b, self.c, self.where = buffers
        device, n = bench.device, self.side * round_.depth
        bits, gaps = (round_.a_bits, round_.b_bits), round_.gaps
        for index, (whole, wide, seed) in enumerate(
            ((self.a64, self.a, bench.seed), (self.b64, self.b, bench.seed ^ 0xB))
        ):
            device.launch(
                "operands", "fill_integers", p(whole), u64(n), u64(seed), u32(bits[index]), u32(round_.depth),
                u32(gaps[index]),
            )  # fmt: skip
            device.launch("operands", "encode", p(wide), p(whole), u64(n), u32(d.code))
        device.launch(
            "gemm", "gemm_reference", p(self.a64), p(self.b64), p(self.want), u32(self.side),
            u32(round_.depth), grid=(self.side // 64, self.side // 64),
        )  # fmt: skip
        device.sync()

    @staticmethod
    def sizes(d: DType, round_: ProductRound, side: int) -> tuple[int, ...]:
        n, c = side * round_.depth, side**2
        return n * 8, n * 8, c * 8, d.bytes_of(n), d.bytes_of(n), c * d.c_size, (side // d.tile) ** 2 * 4

    def compare(self, log: ctypes.c_void_p) -> None:
        """Queue the comparison of C; errors go to the device's log."""
        kernel = "compare_i32" if self.d.integer else f"compare_f{self.d.c_size * 8}"
        n = self.side * self.side
        self.bench.device.launch("operands", kernel, p(self.c), p(self.want), u64(n), log)

    def queue(self, multiply: Callable[[], None], log: ctypes.c_void_p) -> None:
        """Queue a product and its comparison. C is filled first, so unwritten elements fail."""
        device = self.bench.device
        size = self.side * self.side * self.d.c_size
        device.call("cuMemsetD8Async", self.c, self.d.fill_byte, size, device.stream)
        multiply()
        self.compare(log)

    def run_once(
        self, multiply: Callable[[], None], tally: Tally, label: str, *, signed: bool = False
    ) -> None:
        """Compute and compare one product. `signed`: its kernel records the SM of each tile."""
        device = self.bench.device
        self.queue(multiply, device.fresh_log())
        self._report_errors(tally, label, signed)

    def run_for(self, multiply: Callable[[], None], seconds: float, tally: Tally, label: str) -> int:
        """Compute products without a pause for `seconds`; return their number.

        They are queued ahead so that the device never waits for the host, and the log is read once per
        second. Full power needs both.
        """
        bench, done, time_left = self.bench, 0, until(seconds)
        while True:
            log, second, first = bench.device.fresh_log(), until(1.0), done
            while True:
                self.queue(multiply, log)
                done += 1
                if done % 16 == 0:
                    bench.beat(done, 0)
                if done - first >= bench.sizes.queued or not second() or not time_left():
                    break
            self._report_errors(tally, label, False)
            if not time_left():
                return done

    def finds_planted_bit(self) -> bool:
        """Return whether the comparison finds one flipped bit of a correct C, alone and at its index."""
        bench, device = self.bench, self.bench.device
        words = self.side * self.side * self.d.c_size // 8
        index, bit = bench.seed % words, bench.seed // words % 64
        device.launch("memory", "flip_bit", p(self.c), u64(index), u64(bit), grid=(1, 1), threads=1)
        self.compare(device.fresh_log())
        errors = device.log()
        word_index = index if self.d.name == "fp64" else index * 2 + bit // 32
        return (errors.count, errors.first) == (1, word_index)

    def _report_errors(self, tally: Tally, label: str, signed: bool) -> None:
        log = self.bench.device.log()
        sm_of = self._sm_of() if signed and log.count else None
        tally.add_log(log, f"{label}, {self.round.a_bits} by {self.round.b_bits} bits", sm_of)

    def _sm_of(self) -> Callable[[int], int]:
        """Return a function from an element's index to its SM, in the last product of an own kernel."""
        tile, tiles = self.d.tile, self.side // self.d.tile
        signed = (ctypes.c_uint32 * (tiles * tiles))()
        self.bench.device.read(signed, self.where)
        return lambda index: int(signed[index // self.side // tile * tiles + index % self.side // tile])

    def multiply(self, kernel: Kernel | None = None) -> None:
        own_gemm(
            self.bench.device, self.d, self.a, self.b, self.c, self.side, self.round.depth,
            where=self.where, kernel=kernel,
        )  # fmt: skip

    def multiply_blas(self) -> None:
        assert self.bench.blas is not None
        self.bench.blas.gemm(self.d.name, self.a, self.b, self.c, self.side, self.round.depth)


def rounds(bench: Bench, d: DType, side: int, deepest: int) -> Iterator[ExactProduct]:
    """Yield the rounds of a type, each with its own buffers while in use."""
    for round_ in rounds_of(d.name, d.step, deepest):
        with bench.device.buffers(*ExactProduct.sizes(d, round_, side)) as buffers:
            yield ExactProduct(bench, d, round_, side, buffers)


def _dtype(bench: Bench) -> DType:
    d = DTYPES[bench.params["dtype"]]
    if bench.device.capability < d.since:
        major, minor = bench.device.capability
        raise Skip(f"{d.name.upper()} is not supported by compute capability {major}.{minor}.")
    return d


def exact(bench: Bench) -> Outcome:
    """Compare products of each own kernel and of cuBLAS, if available, bit by bit in each round.

    Each round ends with a canary: one flipped bit of the result must be found at its index.
    """
    d, device, tally = _dtype(bench), bench.device, Tally()
    by_blas = bench.blas is not None and bench.blas.supports(d.name)
    kernels = own_kernels(device, d)
    caught, done = True, 0
    for work in rounds(bench, d, bench.sizes.exact_side, bench.sizes.exact_depth):
        if by_blas:
            work.run_once(work.multiply_blas, tally, "cublas")
        for kernel in kernels:
            work.run_once(partial(work.multiply, kernel), tally, kernel.by, signed=True)
        done += 1
        if tally.errors:
            continue
        caught = work.finds_planted_bit() and caught
    by = [*(kernel.by for kernel in kernels), *(["cublas"] if by_blas else [])]
    detail = {**tally.detail(), "canary_found": caught, "by": by}
    return Outcome(
        errors=tally.errors + (not caught),
        detail=detail,
        measures={"products": float(done * len(by)), "rounds": float(done)},
    )


def _against_cpu(bench: Bench, d: DType, c: int, side: int, narrow: bool, tally: Tally) -> dict[str, float]:
    """Compare the first random product with the CPU, to detect errors that repeat each time."""
    size = 2 if narrow else d.c_size
    kinds: dict[str, Any] = {
        "fp64": np.float64, "fp16": np.float16 if narrow else np.float32, "int8": np.int32,
    }  # fmt: skip

    def row_of(row: int) -> NDArray[np.float64]:
        line = (ctypes.c_uint8 * (side * size))()
        bench.device.read(line, c + row * side * size)
        if narrow and d.name == "bf16":
            halves = np.frombuffer(bytes(line), np.uint16).astype(np.uint32)
            return (halves << np.uint32(16)).view(np.float32).astype(np.float64)
        return np.frombuffer(bytes(line), kinds.get(d.name, np.float32)).astype(np.float64)

    errors = reference.compare(
        row_of, dtype=d.name, side=side, depth=side, seeds=(bench.seed, bench.seed ^ 0xC), narrow=narrow,
        beat=bench.beat,
    )  # fmt: skip
    if errors.first_index is not None:
        tally.add(
            errors.wrong, errors.first_index, "CPU's product", f"{errors.got:.9g}", f"{errors.want:.9g}"
        )
    return {"cpu_compared": float(errors.compared), "cpu_worst": round(min(errors.worst, 1e9), 6)}


def burn(bench: Bench) -> Outcome:
    """Compute exact products for half of the time, then random ones: correctness, repeatability, speed.

    Speed is measured in the first few products (burst), and under sustained load with the power limit.
    """
    d, device, tally = _dtype(bench), bench.device, Tally()
    seconds, sizes = bench.seconds(10.0), bench.sizes
    by_blas = bench.blas is not None and bench.blas.supports(d.name)
    done, kinds = 0, len(rounds_of(d.name, d.step, sizes.burn_depth))
    for work in rounds(bench, d, sizes.burn_side, sizes.burn_depth):
        multiply_exact = work.multiply_blas if by_blas else work.multiply
        done += work.run_for(multiply_exact, seconds / 2 / kinds, tally, "exact")
    side = sizes.rate_side_wide if d.name in ("fp32", "fp64") else sizes.rate_side
    n, c_bytes = side * side, side * side * d.c_size
    narrow = by_blas and d.name in ("fp16", "bf16")
    rates: list[float] = []
    with device.buffers(d.bytes_of(n), d.bytes_of(n), c_bytes, c_bytes) as (a, b, c, first):
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
        by_cpu = _against_cpu(bench, d, first, side, narrow, tally)
        # The device idled while the CPU computed.
        multiply(3)()
        device.sync()
        at_first = min(10, sizes.launches)
        burst = 2.0 * side**3 * at_first / device.timed(multiply(at_first)) / 1e9
        once_ms = max(device.timed(multiply(1)), 0.001)
        times = max(1, min(sizes.launches, int(200 / once_ms)))
        words = side * side * (2 if narrow else d.c_size) // 4
        time_left = until(seconds / 2)
        while True:
            took_ms = device.timed(multiply(times))
            rates.append(2.0 * side**3 * times / took_ms / 1e9)
            device.launch("memory", "compare_words", p(c), p(first), u64(words), device.fresh_log())
            tally.add_log(device.log(), "run to run")
            bench.beat(done + len(rates), 0)
            if len(rates) >= 3 and not time_left():
                break
    quarter = max(1, len(rates) // 4)
    measures = {
        **rate_of(d.rate() if by_blas else d.rate("_own"), rates),
        **({d.rate("_burst"): round(burst, 3)} if by_blas else {}),
        **by_cpu,
        "exact_rounds": float(done),
        "random_rounds": float(len(rates)),
        "last_to_first": round(sum(rates[-quarter:]) / sum(rates[:quarter]), 4),
    }
    by = bench.blas.version if by_blas and bench.blas is not None else own_kernels(device, d)[0].by
    return Outcome(errors=tally.errors, measures=measures, detail={**tally.detail(), "by": by, "side": side})


def power_steps(bench: Bench) -> Outcome:
    """Alternate idle and full load with exact products, to find weak power supplies and regulators."""
    d, sizes = DTYPES["bf16" if bench.device.capability >= (8, 0) else "fp16"], bench.sizes
    cycles, tally, done = int(bench.params.get("cycles", 10)), Tally(), 0
    by_blas = bench.blas is not None and bench.blas.supports(d.name)
    # All bits of A in the longest sums: the round that draws the most power.
    round_ = rounds_of(d.name, d.step, sizes.burn_depth)[0]
    with bench.device.buffers(*ExactProduct.sizes(d, round_, sizes.burn_side)) as buffers:
        work = ExactProduct(bench, d, round_, sizes.burn_side, buffers)
        multiply = work.multiply_blas if by_blas else work.multiply
        for cycle in range(cycles):
            done += work.run_for(multiply, bench.seconds(1.0), tally, "after a step")
            time.sleep(bench.seconds(1.0))
            bench.beat(cycle + 1, cycles)
    return Outcome(tally.errors, {"cycles": float(cycles), "exact_rounds": float(done)}, tally.detail())
