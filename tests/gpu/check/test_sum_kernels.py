"""The kernels of sums over several devices, on the host."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from provisioning.gpu.check.probes.collective import KINDS, MAX_RANKS, Kind
from tests.gpu.check.host import Host

WORDS, SEED = 3000, 77


def parts(host: Host, kind: Kind, ranks: int) -> list[NDArray[np.uint64]]:
    made = [np.zeros(WORDS, np.uint64) for _ in range(ranks)]
    for rank, part in enumerate(made):
        host.run("fill_part", part, WORDS, SEED, rank, kind.pair)
    return made


def added(made: list[NDArray[np.uint64]], kind: Kind) -> NDArray[np.uint64]:
    """The sum computed sequentially, as a ring does it."""
    total = made[0].copy()
    view = total.view(np.float32) if kind.pair else total
    for part in made[1:]:
        view += part.view(view.dtype)
    return total


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.dtype)
@pytest.mark.parametrize("ranks", [2, 3, MAX_RANKS])
def test_sum_is_known_and_independent_of_order(host: Host, kind: Kind, ranks: int) -> None:
    made = parts(host, kind, ranks)
    assert len({part.tobytes() for part in made}) == ranks
    for order in (made, made[::-1], [*made[1::2], *made[::2]]):
        assert host.log("check_sum", added(order, kind), WORDS, SEED, ranks, kind.pair).count == 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.dtype)
def test_each_bit_of_a_word_is_checked(host: Host, kind: Kind) -> None:
    good = added(parts(host, kind, 3), kind)
    for bit in range(64):
        wrong = good.copy()
        wrong[bit * 40 + 7] ^= np.uint64(1 << bit)
        log = host.log("check_sum", wrong, WORDS, SEED, 3, kind.pair)
        assert (log.count, log.first, log.bits) == (1, bit * 40 + 7, 1 << bit)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.dtype)
def test_missing_or_double_summand_is_detected(host: Host, kind: Kind) -> None:
    made = parts(host, kind, 3)
    for wrong in (made[:2], [*made, made[1]], made[:1]):
        assert host.log("check_sum", added(wrong, kind), WORDS, SEED, 3, kind.pair).count > WORDS * 0.99


def test_values_use_the_full_mantissa_and_both_signs(host: Host) -> None:
    """FP32 sums of 16 values stay just below 2^24."""
    made = parts(host, KINDS[1], MAX_RANKS)
    numbers = np.concatenate([part.view(np.float32) for part in made])
    assert (numbers == numbers.round()).all()
    assert -(2**20) <= numbers.min() < -(2**20) * 0.99
    assert 2**20 * 0.99 < numbers.max() < 2**20
    mantissas = numbers[abs(numbers) >= 2**19].view(np.uint32)
    assert np.bitwise_or.reduce(mantissas) & 0x7FFFF0 == 0x7FFFF0
