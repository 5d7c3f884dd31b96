"""Reads of workspaces, as the actor may see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Count, QuerySet
from django.utils import timezone

from portal.accounts.models import Team, User
from portal.catalog import selectors as catalog
from portal.catalog.models import Flavor, Template
from portal.common.errors import NotFound
from portal.events.models import Event
from portal.inventory.checks import handout
from portal.quotas import admission
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace, WorkspaceQuerySet
from portal.workspaces.policies import visible_to


def workspaces_for(actor: User) -> WorkspaceQuerySet:
    """All that the actor may see, newest first, with what a list shows: no query for each row."""
    return (
        visible_to(actor, Workspace.objects.all())
        .select_related("owner", "team", "template", "flavor", "flavor__pool", "pool")
        .order_by("-created_at", "-id")
    )


def own_live(actor: User) -> WorkspaceQuerySet:
    """The actor's own workspaces that have not been deleted."""
    return workspaces_for(actor).live().filter(owner=actor)


def workspace_by_id(actor: User, workspace_id: UUID) -> Workspace:
    """The workspace, or `NotFound` when there is none or the actor may not see it."""
    workspace = workspaces_for(actor).filter(pk=workspace_id).first()
    if workspace is None:
        raise NotFound(
            "There is no such workspace, or it is not yours to see.",
            next_action="Look at your list of workspaces.",
        )
    return workspace


def events_of(workspace: Workspace, *, after: int = 0) -> QuerySet[Event]:
    """The workspace's events, oldest first, those after event id `after`."""
    return Event.objects.filter(workspace=workspace, pk__gt=after).order_by("pk")


def last_choice(actor: User) -> Workspace | None:
    """The actor's most recent request whose template and flavor can still be had: the next default."""
    return (
        Workspace.objects.filter(
            owner=actor, template__enabled=True, flavor__enabled=True, team__memberships__user=actor
        )
        .select_related("template", "flavor", "team", "flavor__pool")
        .order_by("-created_at")
        .first()
    )


def counts_by_state() -> dict[str, int]:
    """How many workspaces there are in each state, deleted ones left out."""
    rows = Workspace.objects.live().values_list("state").annotate(count=Count("pk"))
    return dict(rows)


@dataclass(frozen=True, slots=True)
class TemplateOffer:
    """A template card. `reason` says why it cannot be had, with `next_action`, or is empty."""

    template: Template
    reason: str = ""
    next_action: str = ""


def template_offers() -> list[TemplateOffer]:
    """Every template, with the reason where no node has its program."""
    from portal.inventory.models import Node

    nodes = list(Node.objects.filter(pool__simulated=False, pool__enabled=True).only("programs"))
    offers = []
    for template in catalog.templates():
        if nodes and admission.missing_program(template, nodes):
            offers.append(
                TemplateOffer(
                    template,
                    f"Needs {template.program}, which no node has.",
                    template.install_hint,
                )
            )
        else:
            offers.append(TemplateOffer(template))
    return offers


@dataclass(frozen=True, slots=True)
class FlavorOffer:
    """A flavor card with its live verdict."""

    flavor: Flavor
    verdict: admission.Verdict


def flavor_offers(template: Template, team: Team | None, actor: User) -> list[FlavorOffer]:
    """Every flavor with what would happen to it now, for this template and team."""
    flavors = list(catalog.flavors())
    verdicts = admission.assess_many(template=template, flavors=flavors, team=team, actor=actor)
    return [FlavorOffer(flavor, verdict) for flavor, verdict in zip(flavors, verdicts, strict=True)]


def alternatives(offers: Sequence[FlavorOffer], chosen: Flavor, *, most: int = 3) -> list[FlavorOffer]:
    """Flavors that start now in place of `chosen`, the nearest first: as many accelerators, then memory."""
    fitting = [
        offer
        for offer in offers
        if offer.verdict.outcome is admission.Outcome.FITS_NOW
        and offer.flavor != chosen
        and offer.flavor.simulated == chosen.simulated
    ]

    def distance(offer: FlavorOffer) -> tuple[bool, int, int]:
        flavor = offer.flavor
        wanted = chosen.accelerator_count * chosen.accelerator_milli
        has = flavor.accelerator_count * flavor.accelerator_milli
        return (
            bool(has) != bool(wanted),
            abs(has - wanted),
            abs(flavor.memory_mib - chosen.memory_mib),
        )

    return sorted(fitting, key=distance)[:most]


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the way to a usable workspace.

    `state` is `done`, `current`, `failed` or `todo`; `seconds` is how long it took, or has been taking
    since `began_at`. Of the last stage it is the whole way from the request.
    """

    key: str
    label: str
    state: str
    began_at: datetime | None = None
    seconds: float | None = None

    @property
    def state_label(self) -> str:
        words = {"done": "done", "current": "under way", "failed": "failed", "todo": "still to come"}
        return words[self.state]


def stages(workspace: Workspace) -> list[Stage]:
    """Requested → Admitted → Placed → (Checked →) Starting → Ready, with the duration of each."""
    requested, ready = workspace.requested_at, workspace.ready_at
    checks = handout.span(workspace)
    ways: list[tuple[str, str, datetime | None, datetime | None]] = [
        ("requested", "Requested", requested, requested),
        ("admitted", "Admitted", requested, workspace.admitted_at),
        ("placed", "Placed", workspace.admitted_at, workspace.placed_at),
        *([("checked", "Checked", *checks)] if checks is not None else []),
        # Starting is over when the app has answered, not when its process is there.
        ("starting", "Starting", checks[1] if checks is not None else workspace.placed_at, ready),
        ("ready", "Ready", requested if ready else None, ready),
    ]
    moving = workspace.state in {State.PENDING, State.PROVISIONING}
    broken = ready is None and workspace.state in {State.FAILED, State.TERMINATING}
    found: list[Stage] = []
    for key, label, began, ended in ways:
        if began is not None and ended is not None:
            found.append(Stage(key, label, "done", began, (ended - began).total_seconds()))
        elif (moving or broken) and all(stage.state == "done" for stage in found):
            seconds = (timezone.now() - began).total_seconds() if moving and began else None
            found.append(Stage(key, label, "current" if moving else "failed", began, seconds))
        else:
            found.append(Stage(key, label, "todo"))
    return found
