"""Presenter of a team's page: workspaces, quota, members' use, caps, requests, and GPU plots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.db.models import Max
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.formatting import (
    format_amount,
    format_duration,
    format_input,
    format_resource,
    format_unit,
)
from portal.fleet.inventory import use_history, use_plots
from portal.fleet.inventory.models import AllocatedDevice
from portal.fleet.inventory.use_history import Window
from portal.fleet.inventory.use_plots import UsePlots
from portal.people.accounts.models import Membership, Team, User
from portal.quota.ledger import budgets
from portal.quota.ledger import selectors as ledger_selectors
from portal.quota.ledger.models import Period
from portal.quota.limits import policies, resources
from portal.quota.limits.models import MemberCap
from portal.quota.limits.presenters.bars import sort_resources
from portal.quota.limits.selectors import limits
from portal.quota.limits.selectors.limits import MemberUse
from portal.quota.requests import selectors as request_selectors
from portal.reclaim import overview
from portal.web.workspace_list.presenters import count_text
from portal.web.workspace_list.selectors import selection_of
from portal.workspaces.lifecycle import State
from portal.workspaces.policies import teams_seen

MIN_IDLE_S = 60


@dataclass(frozen=True, slots=True)
class CapRow:
    """A cap on the page."""

    cap: MemberCap
    used: int | None

    @property
    def member_name(self) -> str:
        return self.cap.user.username if self.cap.user else _("Each member")

    @property
    def label(self) -> str:
        return format_resource(self.cap.resource)

    @property
    def unit(self) -> str:
        return format_unit(self.cap.resource)

    @property
    def form_value(self) -> str:
        return format_input(self.cap.resource, self.cap.amount)

    @property
    def usage_text(self) -> str:
        return format_amount(self.cap.resource, self.cap.amount)

    @property
    def used_text(self) -> str:
        return "" if self.used is None else format_amount(self.cap.resource, self.used)

    @property
    def is_over_cap(self) -> bool:
        return self.used is not None and self.used > self.cap.amount


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member with their use."""

    membership: Membership
    uses: list[MemberUse]

    @property
    def in_use(self) -> bool:
        """Whether the member uses anything; a cap alone is listed with 0."""
        return any(use.used for use in self.uses)


def quota_of(actor: User, team: Team, memberships: Iterable[Membership]) -> dict[str, Any]:
    """Return the context of the page's quota parts."""
    now = limits.usage_snapshot([team.slug])
    members = list(memberships)
    bars = limits.team_usage_in(now, team.slug, actor)
    uses = limits.members_use(now, team.slug, [membership.user for membership in members])
    used = now.uses[team.slug].by_user
    caps = [
        CapRow(cap, used.get(str(cap.user_id), {}).get(cap.resource, 0) if cap.user_id else None)
        for cap in limits.caps_of(team)
    ]
    may_set_member_caps = policies.may_set_member_caps(actor, team)
    choices = sort_resources({bar.resource for bar in bars} | {resources.GPU, resources.WORKSPACES})
    return {
        "bars": bars,
        "unlimited": all(bar.unlimited for bar in bars),
        "members": [MemberRow(membership, uses[membership.user_id]) for membership in members],
        "caps": caps,
        "may_set_member_caps": may_set_member_caps,
        "statement": ledger_selectors.statement(team),
        "budget": budgets.statement(team),
        "currency": settings.BERTH_CURRENCY,
        "may_set_ledger": policies.may_set_limits(actor),
        "may_credit": policies.may_set_limits(actor) or policies.may_decide(actor),
        "periods": Period.choices,
        "cap_resources": [(name, f"{format_resource(name)} ({format_unit(name)})") for name in choices],
        "cap_members": list(
            team.memberships.order_by("user__username").values_list("user__username", flat=True)[:500]
        )
        if may_set_member_caps
        else [],
        "requests": request_selectors.requests_of_team(team),
    }


@dataclass(frozen=True, slots=True)
class WorkspaceLink:
    """A list of the team's workspaces. `count` is their number, or how long the first has been idle."""

    label: str
    count: str
    url: str


@dataclass(frozen=True, slots=True)
class TeamWorkspaces:
    """Links to a team's workspaces. `others` says whether the reader sees other members' workspaces too."""

    links: tuple[WorkspaceLink, ...]
    others: bool


def workspaces_of(actor: User, team: Team) -> TeamWorkspaces:
    """Return links to the team's workspaces, with the numbers that the lists show.

    One query for each link, and one for the permission.
    """
    links = [_link(actor, team, label, state) for label, state in _listed_states()]
    if (idle := _idle_link(actor, team)) is not None:
        links.append(idle)
    return TeamWorkspaces(tuple(links), actor.sees_all or teams_seen(actor).filter(pk=team.pk).exists())


def _listed_states() -> Iterable[tuple[str, str]]:
    yield str(State.RUNNING.label), State.RUNNING.value
    yield str(State.PENDING.label), State.PENDING.value
    yield _("All"), ""


def _link(actor: User, team: Team, label: str, state: str) -> WorkspaceLink:
    query = {"team": team.slug} | ({"state": state} if state else {})
    count = selection_of(actor, query).count()
    return WorkspaceLink(label, count_text(count), f"{reverse('workspace_list:list')}?{urlencode(query)}")


def _idle_link(actor: User, team: Team) -> WorkspaceLink | None:
    """Return a link to the running workspaces, longest idle first; None if none is idle for a minute."""
    query = {"team": team.slug, "state": State.RUNNING.value, "sort": "idle"}
    rows = selection_of(actor, query).rows().annotate(idle_s=overview.idle_s(timezone.now()))
    longest_s = rows.order_by().aggregate(longest_s=Max("idle_s"))["longest_s"] or 0
    if longest_s < MIN_IDLE_S:
        return None
    url = f"{reverse('workspace_list:list')}?{urlencode(query)}"
    return WorkspaceLink(_("Longest idle"), format_duration(longest_s), url)


def use_of(team: Team, window: Window) -> tuple[UsePlots, bool]:
    """Return the plots of a team's GPUs, and whether the GPUs are simulated.

    Simulated GPUs count only if the team had no real GPUs.
    """
    rows = AllocatedDevice.objects.filter(allocation__workspace__team=team)
    real = rows.filter(device__node__pool__simulated=False)
    allocated, simulated = use_history.allocated(real, window), False
    if not any(allocated):
        simulated_values = use_history.allocated(rows.exclude(pk__in=real.values("pk")), window)
        if any(simulated_values):
            allocated, simulated = simulated_values, True
    use = use_history.allocated_use(real, window)
    first = use_plots.allocated_plot(allocated, window)
    return use_plots.use_plots(first, use, window, total_mib=0, simulated=simulated), simulated
