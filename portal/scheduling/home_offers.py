"""Offers to move a large home if a waiting request could then start at once."""

from __future__ import annotations

from portal.catalog.models import Flavor, Template
from portal.people.accounts.models import Team, User
from portal.scheduling import admission
from portal.scheduling.verdicts import Outcome, Verdict
from portal.workspaces.homes import places as home_places


def verdict_with_home_move(
    verdict: Verdict,
    *,
    template: Template,
    flavor: Flavor,
    team: Team,
    actor: User,
    expected_s: int | None,
    environment: str,
    priority: int = 0,
) -> Verdict | None:
    """Return the verdict with `move_home` if only that request would start at once, else None.

    `verdict` is the verdict without it. None also if the user has no home that is too large to move unasked.
    """
    if verdict.outcome is not Outcome.QUEUED:
        return None
    homes = home_places.home_places(actor.pk, team.pk).values()
    if not any(home.movable_mib is not None and not home.moves_by_itself for home in homes):
        return None
    result = admission.assess(
        template=template,
        flavor=flavor,
        team=team,
        actor=actor,
        priority=priority,
        expected_s=expected_s,
        environment=environment,
        move_home=True,
    )
    return result if result.home_move is not None else None
