"""Domain events: how a package notifies packages above it, which it must not import.

An event is a frozen dataclass, defined in `domain_events.py` of the package that emits it. All listeners are
registered in `portal.wiring`.

An event is a fact. To get an answer or to allow a refusal, use a typed port (`portal.common.ports`).

A listener runs either in the emitter's transaction, for writes that must be atomic with the event, or on
commit. Exceptions on commit are logged; they reach neither the emitter nor other listeners.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from django.db import transaction

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DomainEvent:
    """Base of events. The event has happened once the emitter's transaction is committed."""


E = TypeVar("E", bound=DomainEvent)
Listener = Callable[[E], object]

_in_transaction: defaultdict[type[DomainEvent], list[Listener[Any]]] = defaultdict(list)
_on_commit: defaultdict[type[DomainEvent], list[Listener[Any]]] = defaultdict(list)


def in_transaction(event: type[E], *listeners: Listener[E]) -> None:
    """Register listeners that run, in this order, inside the emitter's transaction."""
    _in_transaction[event].extend(listeners)


def on_commit(event: type[E], *listeners: Listener[E]) -> None:
    """Register listeners that run after the emitter's transaction is committed."""
    _on_commit[event].extend(listeners)


def emit(event: DomainEvent) -> None:
    """Call the listeners registered for exactly this event class."""
    for listener in _in_transaction[type(event)]:
        listener(event)
    for listener in _on_commit[type(event)]:
        transaction.on_commit(partial(_call, listener, event))


def _call(listener: Listener[Any], event: DomainEvent) -> None:
    try:
        listener(event)
    except Exception:
        log.exception("listener to %s failed", type(event).__name__)
