"""Presenter of the home page, except for its workspace cards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from portal.catalog.environments.models import Environment
from portal.catalog.models import Flavor, Template
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import Team, User
from portal.people.join_requests import presenters as join_presenters
from portal.scheduling import admission
from portal.scheduling.verdicts import Verdict
from portal.workspaces import software
from portal.workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class LastChoice:
    """The user's most recent setup with its current verdict."""

    template: Template
    flavor: Flavor
    team: Team
    verdict: Verdict
    environment: Environment | None = None

    @property
    def verdict_line(self) -> str:
        if self.verdict.starts_now:
            return _("Your most recent setup can start now.")
        return _("Your most recent setup would have to wait. %(why)s") % {"why": self.verdict.message}


def join_page_data(actor: User) -> dict[str, Any]:
    """Return the data for users without a team: available teams and the users' join requests.

    Otherwise `joined` is their first team, and `starts` says whether they may start workspaces. Operators and
    auditors need no team.
    """
    joined = accounts.own_teams(actor).first()
    if joined is not None or actor.sees_all:
        return {"no_team": False, "joined": joined, "starts": accounts.chargeable_teams(actor).exists()}
    return {"no_team": True, "joined": None, **join_presenters.home_page_context(actor)}


def last_choice(actor: User, last: Workspace | None) -> LastChoice | None:
    """Return the most recent setup with its verdict, or `None` if it is no longer possible."""
    if last is None:
        return None
    environment = software.environment_to_repeat(last)
    choice = software.choose_software(last.template, last.team, environment)
    verdict = admission.assess(
        template=last.template,
        flavor=last.flavor,
        team=last.team,
        actor=actor,
        environment=choice.digest,
    )
    if not verdict.possible:
        return None
    return LastChoice(last.template, last.flavor, last.team, verdict, environment)
