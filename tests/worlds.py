"""A world that all tests of a module share: made once, and as it was made for each of them.

Its rows are in a transaction around the tests', in which Django's `TestCase` makes savepoints: what a test
does to them is taken back with the rest of it. `shared` goes into a fixture of the module, `World.met` into
one of a test.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import pytest
import time_machine
from django.db import transaction
from pytest_django import DjangoDbBlocker

from tests.broker import Broker

T = TypeVar("T")


@contextmanager
def taken_back() -> Iterator[None]:
    """What is done inside is undone, so that the next asks the same world."""
    around = transaction.atomic()
    # What waits for a commit runs when it would: see `tests.databases.commits`.
    around._from_testcase = True
    with around:
        yield
        transaction.set_rollback(True)


@dataclass(frozen=True, slots=True)
class World(Generic[T]):
    made: T
    at: dt.datetime

    @contextmanager
    def met(self) -> Iterator[T]:
        """The world in the moment when it was made, whenever the test runs; objects are the test's own."""
        with time_machine.travel(self.at, tick=True):
            yield copy.deepcopy(self.made)


@contextmanager
def shared(blocker: DjangoDbBlocker, make: Callable[[Broker], T]) -> Iterator[World[T]]:
    """The world that `make` makes, until its module is over. Nothing that it sends is for a test."""
    with blocker.unblock(), taken_back():
        with pytest.MonkeyPatch.context() as patch:
            value = make(Broker.in_place_of_redis(patch))
        yield World(value, dt.datetime.now(dt.UTC))
