"""A world that all tests of a module share: created once, and unchanged for each test.

Its rows are in a transaction around those of the tests, in which Django's `TestCase` creates savepoints, so
changes of a test are rolled back. Use `shared` in a module fixture and `World.met` in a test fixture.
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
    """Undo all changes made within the block."""
    around = transaction.atomic()
    # Callbacks on commit run as in production: see `tests.databases.commits`.
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
        """Return the world as of its creation, whenever the test runs. Its objects belong to the test."""
        with time_machine.travel(self.at, tick=True):
            yield copy.deepcopy(self.made)


@contextmanager
def shared(blocker: DjangoDbBlocker, make: Callable[[Broker], T]) -> Iterator[World[T]]:
    """Return the world created by `make` until the end of the module. Tests do not see its messages."""
    with blocker.unblock(), taken_back():
        with pytest.MonkeyPatch.context() as patch:
            value = make(Broker.in_place_of_redis(patch))
        yield World(value, dt.datetime.now(dt.UTC))
