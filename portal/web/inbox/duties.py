"""The roles that determine which inbox items can wait for an actor."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Exists
from django.utils import timezone

from portal.people.accounts import approvers
from portal.people.accounts.models import Membership, Role, User


@dataclass(frozen=True, slots=True)
class Duties:
    """Whether the actor operates pools, decides all teams' requests, and owns a team."""

    operates: bool
    decides: bool
    owns: bool


def duties_of(actor: User) -> Duties:
    """Return the duties of the actor with one query, or none for administrators."""
    if actor.administers:
        return Duties(operates=True, decides=True, owns=True)
    delegated = approvers.delegations_at(timezone.now()).filter(delegate=actor.pk)
    owned = Membership.objects.filter(user=actor.pk, role=Role.OWNER)
    rows = User.objects.filter(pk=actor.pk).values_list(Exists(delegated), Exists(owned))
    delegate, owner = rows.get()
    return Duties(actor.operates, approvers.is_approver(actor) or delegate, owner)
