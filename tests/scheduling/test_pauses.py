"""Full garbage collections run at rest, never within a decision."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from portal.scheduling import pauses


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start without frozen objects; afterwards collection works as before."""
    for name, value in (("frozen", False), ("young_collections", 0), ("next_full_at", 0.0)):
        monkeypatch.setattr(pauses._Process, name, value)
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record the number of frozen objects at each full collection."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(gc.get_freeze_count())

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


class Knot:
    """Garbage that only the collector frees."""

    def __init__(self) -> None:
        self.me = self


def work(count: int) -> list[Any]:
    """Create lasting objects, so many that the young generation is collected `count` times."""
    return [[] for _ in range(count * pauses.THRESHOLDS[0] * (pauses.THRESHOLDS[1] + 1))]


def test_process_without_frozen_objects_uses_default_collection(full: list[int]) -> None:
    before = gc.get_threshold()
    kept = work(pauses.COLLECT_AFTER + 1)
    full.clear()
    assert not pauses.collect_if_due()
    assert not full and gc.get_threshold() == before and kept


def test_no_full_collection_within_a_decision(full: list[int]) -> None:
    pauses.freeze()
    full.clear()
    kept = work(40)
    assert not full
    assert kept


def test_due_collection_runs_at_rest_and_freezes_survivors(full: list[int]) -> None:
    pauses.freeze()
    frozen = gc.get_freeze_count()
    assert not pauses.collect_if_due()
    kept = work(pauses.COLLECT_AFTER + 1)
    full.clear()
    assert pauses.collect_if_due()
    assert len(full) == 1 and full[0] >= frozen * 0.9
    assert gc.get_freeze_count() > frozen + len(kept) * 0.9
    # Not due again before more objects exist.
    assert not pauses.collect_if_due()


def test_garbage_is_freed_between_decisions() -> None:
    pauses.freeze()
    knots = [Knot() for _ in range(100)]
    kept = work(pauses.COLLECT_AFTER + 1)
    knots.clear()
    assert pauses.collect_if_due() and kept
    assert not any(type(each) is Knot for each in gc.get_objects())


@pytest.mark.thorough("runs the garbage collector a hundred times")
def test_frozen_objects_are_collected_after_the_full_interval(full: list[int]) -> None:
    knots = [Knot() for _ in range(100)]
    pauses.freeze()
    knots.clear()
    kept = [work(pauses.COLLECT_AFTER + 1)]
    assert pauses.collect_if_due()
    pauses._Process.next_full_at = 0.0
    kept.append(work(pauses.COLLECT_AFTER + 1))
    full.clear()
    assert pauses.collect_if_due()
    assert full == [0]
    gc.unfreeze()
    assert not any(type(each) is Knot for each in gc.get_objects())
    # The next one is some time away, whatever this one took.
    gc.freeze()
    kept.append(work(pauses.COLLECT_AFTER + 1))
    full.clear()
    assert pauses.collect_if_due()
    assert full != [0]
