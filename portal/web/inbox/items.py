"""Inbox items and their parts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import models
from django.utils.translation import gettext_lazy as _


class ItemKind(models.TextChoices):
    """Kind of an inbox item."""

    QUOTA = "quota", _("Quota requests")
    RESERVATION = "reservation", _("Reservations")
    JOIN = "join", _("Requests to join")
    CAPACITY = "capacity", _("GPUs, nodes and pools")
    TOKEN = "token", _("Your tokens")


@dataclass(frozen=True, slots=True, order=True)
class SortKey:
    """Sort key of an item: urgent items first, then those that have waited longest.

    `later` is `False` for urgent items. `source` and `pk` identify the item and break ties.
    """

    later: bool
    since: datetime
    source: str
    pk: str

    @property
    def id(self) -> str:
        """Identifier of the item in pages and in REST."""
        return f"{self.source}-{self.pk}"


@dataclass(frozen=True, slots=True)
class Action:
    """An action that is safe without further details: a form that posts `fields` to `url`.

    `name` names the item for screen readers.
    """

    text: str
    icon: str
    url: str
    fields: tuple[tuple[str, str], ...]
    name: str


@dataclass(frozen=True, slots=True)
class Item:
    """Something that waits for the user.

    `who` is the requester or the affected object, `reason` explains why the user has to act, and `due_at` is
    when the item expires. `url` is the page for the decision, `text` the label of its link.
    """

    key: SortKey
    kind: ItemKind
    who: str
    title: str
    detail: str
    reason: str
    due_at: datetime | None
    url: str
    text: str
    actions: tuple[Action, ...] = ()
    simulated: bool = False

    @property
    def urgent(self) -> bool:
        return not self.key.later
