"""What stands in an inbox: an item, and the parts that it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import models
from django.utils.translation import gettext_lazy as _


class ItemKind(models.TextChoices):
    """What an item asks for."""

    QUOTA = "quota", _("Quota requests")
    RESERVATION = "reservation", _("Reservations")
    JOIN = "join", _("Requests to join")
    CAPACITY = "capacity", _("GPUs, nodes and pools")
    TOKEN = "token", _("Your tokens")


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Where an item stands: what is urgent comes first, then what has waited for longest.

    `later` is False for what is urgent. `source` and `pk` say what it is, and tell items of one moment apart.
    """

    later: bool
    since: datetime
    source: str
    pk: str

    @property
    def id(self) -> str:
        """Names the item in pages and in REST."""
        return f"{self.source}-{self.pk}"


@dataclass(frozen=True, slots=True)
class Action:
    """A decision that is safe without looking further: a form that sends `fields` to `url`.

    `name` is what it says to who cannot see to which item it belongs.
    """

    words: str
    icon: str
    url: str
    fields: tuple[tuple[str, str], ...]
    name: str


@dataclass(frozen=True, slots=True)
class Item:
    """Something that waits for its reader.

    `who` asks or is in trouble, `reason` says why it is the reader's, `due_at` when it is over by
    itself. `url` is where it is decided, `words` what the link there says.
    """

    key: Key
    kind: ItemKind
    who: str
    title: str
    detail: str
    reason: str
    due_at: datetime | None
    url: str
    words: str
    actions: tuple[Action, ...] = ()
    simulated: bool = False

    @property
    def urgent(self) -> bool:
        return not self.key.later
