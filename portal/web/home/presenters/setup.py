"""First steps of a new installation, for administrators. Computed from the current state."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Membership, User
from portal.quota.limits.models import Quota
from portal.workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class SetupStep:
    """A step, and the page on which to do it."""

    title: str | Promise
    url: str
    done: bool


def setup_steps(actor: User) -> list[SetupStep]:
    """Return the steps for an administrator; empty for other users, and once all are done. Five queries."""
    if not actor.administers:
        return []
    others = User.objects.filter(is_active=True, owning_team=None).exclude(pk=actor.pk)
    steps = [
        SetupStep(
            _("Connect a machine"),
            reverse("fleet:pools"),
            Pool.objects.filter(simulated=False, enabled=True, inventory_at__isnull=False).exists(),
        ),
        SetupStep(
            _("Protect your account with a second factor"),
            reverse("accounts:two-step"),
            actor.mfa_since is not None,
        ),
        SetupStep(_("Invite people"), reverse("accounts:users"), others.exists()),
        SetupStep(
            _("Add members to a team"),
            reverse("accounts:teams"),
            Membership.objects.filter(user__in=others).exists(),
        ),
        SetupStep(_("Set a quota"), reverse("quotas:matrix"), Quota.objects.exists()),
        SetupStep(_("Start a workspace"), reverse("home:new"), Workspace.objects.exists()),
    ]
    return [] if all(step.done for step in steps) else steps
