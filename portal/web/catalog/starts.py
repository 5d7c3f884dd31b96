"""Links from an entry's page to the form of a new workspace."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.catalog import selectors
from portal.catalog.models import Flavor, Template
from portal.people.accounts.models import Team, User
from portal.people.accounts.selectors import chargeable_teams
from portal.workspaces.selectors import last_choice


@dataclass(frozen=True, slots=True)
class Start:
    """A link to the form of a new workspace with an entry chosen.

    `url` is empty if the reader cannot use the entry. Then `reason` says why, unless the reader's teams may
    not use it or the page shows a missing program.
    """

    url: str = ""
    reason: str = ""


def start_with(actor: User, entry: Template | Flavor) -> Start:
    """Return the link for this entry. The last workspace's team is charged if it may use the entry."""
    teams = [team for team in chargeable_teams(actor) if entry.offered_to(team.pk)]
    if actor.only_views or not teams:
        return Start()
    if not entry.enabled:
        return Start(reason=_("Disabled. New workspaces cannot use it; existing ones continue."))
    if isinstance(entry, Template) and selectors.template_offers([entry])[0].blocker is not None:
        return Start()
    kind = "template" if isinstance(entry, Template) else "flavor"
    query = {kind: entry.slug, "team": _preferred(actor, teams).slug}
    return Start(f"{reverse('home:new')}?{urlencode(query)}")


def _preferred(actor: User, teams: list[Team]) -> Team:
    last = last_choice(actor)
    return last.team if last is not None and last.team in teams else teams[0]
