"""Actors: a signed-in user, or the portal itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.contrib.auth.models import _User as User


@dataclass(frozen=True, slots=True)
class SystemActor:
    """The portal as an actor. `label` is its name in the audit log."""

    label: str = "Berth"


SYSTEM = SystemActor()


def label_of(actor: User | SystemActor) -> str:
    """Return the actor's name in the audit log."""
    return actor.label if isinstance(actor, SystemActor) else actor.get_username()
