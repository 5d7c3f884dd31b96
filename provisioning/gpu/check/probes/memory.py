"""Memory tests: residue of earlier tenants, address lines, bit patterns and bit fade."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from provisioning.gpu.check.device import Chunk, u64
from provisioning.gpu.check.device import ptr as p
from provisioning.gpu.check.probes.base import MASK, Bench, Outcome, Tally


@contextmanager
def _chunks(bench: Bench) -> Iterator[tuple[list[Chunk], dict[str, float]]]:
    with bench.device.whole_memory() as (chunks, free):
        tested = sum(chunk.size for chunk in chunks)
        yield chunks, {"tested_mib": tested // 2**20, "coverage": round(tested / free, 4) if free else 0.0}


def residue(bench: Bench) -> Outcome:
    """Count nonzero words, clear the memory, and prove that it is clear.

    The initial count is a measurement; `errors` are words that stayed nonzero after clearing.
    """
    device = bench.device
    free, total = device.memory()
    with device.buffers(8) as (out,), _chunks(bench) as (chunks, measures):

        def total_of(kernel: str) -> int:
            device.clear(out, 8)
            for chunk in chunks:
                device.launch("scrub", kernel, p(chunk.address), u64(chunk.words), p(out))
            counter = u64(0)
            device.read(counter, out)
            return int(counter.value)

        dirty = total_of("count_nonzero")
        bench.beat(1, 3)
        for chunk in chunks:
            device.clear(chunk.address, chunk.size)
        bits = total_of("or_reduce")
        bench.beat(2, 3)
        left = total_of("count_nonzero") if bits else 0
    measures |= {"residue_words": float(dirty), "free_mib": free // 2**20, "total_mib": total // 2**20}
    return Outcome(errors=left, measures=measures, detail={"bits_left": f"{bits:016x}"} if bits else {})


class _Run:
    """Kernels over all chunks, with accumulated errors."""

    def __init__(self, bench: Bench, chunks: list[Chunk]) -> None:
        self.bench, self.chunks, self.tally = bench, chunks, Tally()

    def fill(self, kernel: str, *args: int, base: bool = True) -> None:
        for c in self.chunks:
            where = (u64(c.base),) if base else ()
            self.bench.device.launch("memory", kernel, p(c.address), u64(c.words), *where, *map(u64, args))

    def check(self, kernel: str, *args: int) -> None:
        device = self.bench.device
        log = device.fresh_log()
        for c in self.chunks:
            device.launch("memory", kernel, p(c.address), u64(c.words), u64(c.base), *map(u64, args), log)
        self.tally.add_log(device.log(), kernel)


def _memory_test(bench: Bench, steps: Callable[[_Run], list[Callable[[], None]]]) -> Outcome:
    with _chunks(bench) as (chunks, measures):
        run = _Run(bench, chunks)
        todo = steps(run)
        for done, step in enumerate(todo, 1):
            step()
            bench.device.sync()
            bench.beat(done, len(todo))
        return Outcome(run.tally.errors, measures, run.tally.detail())


def _mixed(run: _Run, seed: int) -> list[Callable[[], None]]:
    def both(flip: int) -> Callable[[], None]:
        def step() -> None:
            run.fill("fill_mix", seed, flip)
            run.check("check_mix", seed, flip)

        return step

    return [both(0), both(MASK)]


def address(bench: Bench) -> Outcome:
    """Write a different value to every word, then its complement, to find stuck or crossed address lines."""
    return _memory_test(bench, lambda run: _mixed(run, bench.seed))


def inversions(bench: Bench) -> Outcome:
    """Run moving inversions of 00/FF and AA/55, two random sequences, and walking bits.

    With `full` also the complement of the walking bits.
    """

    def steps(run: _Run) -> list[Callable[[], None]]:
        def moving(pattern: int) -> Callable[[], None]:
            def step() -> None:
                run.fill("fill_word", pattern, base=False)
                run.check("invert_up", pattern)
                run.check("invert_down", pattern ^ MASK)
                run.check("check_word", pattern)

            return step

        def walking(at: int, flip: int) -> Callable[[], None]:
            def step() -> None:
                run.fill("fill_walk", at, flip)
                run.check("check_walk", at, flip)

            return step

        flips = (0, MASK) if bench.params.get("full") else (0,)
        return [
            *(moving(pattern) for pattern in (0, MASK, 0xAAAAAAAAAAAAAAAA, 0x5555555555555555)),
            *_mixed(run, bench.seed ^ 0x1234567),
            *_mixed(run, bench.seed ^ 0x89ABCDE),
            *(walking(at, flip) for flip in flips for at in range(64)),
        ]

    return _memory_test(bench, steps)


def modulo20(bench: Bench) -> Outcome:
    """Test one word in 20 against 19 neighbours written twice, to find disturbed neighbours."""

    def steps(run: _Run) -> list[Callable[[], None]]:
        def one(offset: int, pattern: int) -> Callable[[], None]:
            def step() -> None:
                run.fill("fill_modulo", offset, pattern, 0)
                run.fill("fill_modulo", offset, pattern, 1)
                run.fill("fill_modulo", offset, pattern, 1)
                run.check("check_modulo", offset, pattern)

            return step

        return [one(offset, pattern) for offset in range(20) for pattern in (0, MASK)]

    return _memory_test(bench, steps)


def bit_fade(bench: Bench) -> Outcome:
    """Check that words left alone for a while are unchanged; then their complement."""
    wait_s = bench.seconds(60.0)

    def steps(run: _Run) -> list[Callable[[], None]]:
        def one(flip: int) -> Callable[[], None]:
            def step() -> None:
                run.fill("fill_mix", bench.seed, flip)
                bench.device.sync()
                end = time.monotonic() + wait_s
                while (left := end - time.monotonic()) > 0:
                    time.sleep(min(1.0, left))
                    bench.beat(0, 2)
                run.check("check_mix", bench.seed, flip)

            return step

        return [one(0), one(MASK)]

    return _memory_test(bench, steps)


def canary(bench: Bench) -> Outcome:
    """Check that every kind of checker reports a deliberately flipped bit, alone and at its exact index.

    `errors` counts checkers that did not. A blind checker would otherwise pass everything.
    """
    device, words = bench.device, 1 << 16
    index, bit = bench.seed % words, bench.seed // words % 64
    missed: list[str] = []
    with device.buffers(words * 8, words * 8, 8) as (memory, other, out):
        chunk = Chunk(memory, words * 8, 0)
        run = _Run(bench, [chunk])
        plans = (
            ("fill_mix", (bench.seed, 0), "check_mix", (bench.seed, 0), True),
            ("fill_word", (0x5555555555555555,), "check_word", (0x5555555555555555,), False),
            ("fill_word", (0x3333333333333333,), "invert_up", (0x3333333333333333,), False),
            ("fill_word", (0xCCCCCCCCCCCCCCCC,), "invert_down", (0xCCCCCCCCCCCCCCCC,), False),
            ("fill_walk", (3, 0), "check_walk", (3, 0), True),
        )
        for fill, fill_args, check, check_args, base in plans:
            run.fill(fill, *fill_args, base=base)
            device.launch("memory", "flip_bit", p(memory), u64(index), u64(bit), grid=(1, 1), threads=1)
            log = device.fresh_log()
            device.launch("memory", check, p(memory), u64(words), u64(0), *map(u64, check_args), log)
            errors = device.log()
            if (errors.count, errors.first, errors.bits) != (1, index, 1 << bit):
                missed.append(check)
        device.clear(memory, words * 8)
        device.clear(other, words * 8)
        device.launch("memory", "flip_bit", p(memory), u64(index), u64(bit), grid=(1, 1), threads=1)
        log = device.fresh_log()
        device.launch("memory", "compare_words", p(memory), p(other), u64(words * 2), log)
        errors = device.log()
        half = index * 2 + bit // 32
        if (errors.count, errors.first, errors.bits) != (1, half, 1 << bit % 32):
            missed.append("compare_words")
        for kernel, want in (("count_nonzero", 1), ("or_reduce", 1 << bit)):
            device.clear(out, 8)
            device.launch("scrub", kernel, p(memory), u64(words), p(out))
            value = u64(0)
            device.read(value, out)
            if value.value != want:
                missed.append(kernel)
    return Outcome(
        errors=len(missed),
        measures={"checkers": float(len(plans) + 3)},
        detail={"planted_index": str(index), "planted_bit": bit, "missed": missed},
    )
