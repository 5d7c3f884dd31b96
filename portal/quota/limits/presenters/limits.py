"""Presents limits on the home page."""

from __future__ import annotations

from dataclasses import dataclass

from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import Team, User
from portal.quota.limits.presenters.bars import QuotaUsage
from portal.quota.limits.selectors import limits

MAX_TEAMS = 6
MAX_BARS = 3


@dataclass(frozen=True, slots=True)
class TeamQuota:
    """A team with its most important bars. `more` is the number of others, shown only on its own page."""

    team: Team
    bars: list[QuotaUsage]
    more: int = 0


def home_page_quotas(user: User) -> list[TeamQuota]:
    """Return the user's limited teams, each with its most important bars."""
    teams = list(accounts.own_teams(user)[:MAX_TEAMS])
    bars_by_team = limits.usage_by_team(teams, user) if teams else {}
    shown = []
    for team in teams:
        bars = [bar for bar in bars_by_team[team.slug] if not bar.unlimited]
        # Exhausted resources come first, the others in order.
        first = sorted(bars, key=lambda bar: not (bar.excess or bar.is_full or bar.queued))[:MAX_BARS]
        if first:
            shown.append(TeamQuota(team, [bar for bar in bars if bar in first], len(bars) - len(first)))
    return shown
