"""How a room tells those above it, which it does not know, that something has happened.

A domain event is a frozen dataclass, defined by the room that emits it (its `domain_events.py`). Who listens
is written in one place, `portal.wiring`.

An event is a fact. A room that needs an answer, or may be refused, asks a typed port
(`portal.common.ports`).

A listener runs either in the emitter's transaction, where it writes what has to be true together with the
fact, or on commit, where an exception is logged and reaches neither the emitter nor the other listeners.
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
    """Something that has happened, at the latest when the emitter's transaction is committed."""


E = TypeVar("E", bound=DomainEvent)
Listener = Callable[[E], object]

_in_transaction: defaultdict[type[DomainEvent], list[Listener[Any]]] = defaultdict(list)
_on_commit: defaultdict[type[DomainEvent], list[Listener[Any]]] = defaultdict(list)


def in_transaction(event: type[E], *listeners: Listener[E]) -> None:
    """Call the listeners, in this order, while the emitter's transaction is open."""
    _in_transaction[event].extend(listeners)


def on_commit(event: type[E], *listeners: Listener[E]) -> None:
    """Call the listeners once the emitter's transaction has been committed."""
    _on_commit[event].extend(listeners)


def emit(event: DomainEvent) -> None:
    """Tell whoever listens to events of exactly this class."""
    for listener in _in_transaction[type(event)]:
        listener(event)
    for listener in _on_commit[type(event)]:
        transaction.on_commit(partial(_call, listener, event))


def _call(listener: Listener[Any], event: DomainEvent) -> None:
    try:
        listener(event)
    except Exception:
        log.exception("a listener to %s failed", type(event).__name__)
