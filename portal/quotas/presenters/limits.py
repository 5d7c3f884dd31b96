"""What pages show of limits, and numbers as people type them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from portal.accounts import selectors as accounts
from portal.accounts.models import Team, User
from portal.common.errors import InvalidInput
from portal.quotas import resources
from portal.quotas.presenters.bars import Bar
from portal.quotas.selectors import limits

TEAMS_AT_HOME = 6
BARS_AT_HOME = 3
DIGITS_AT_MOST = 20


@dataclass(frozen=True, slots=True)
class TeamQuota:
    """A team with the bars that are shown of it; `more` are left for its own page."""

    team: Team
    bars: list[Bar]
    more: int = 0


def for_home(user: User) -> list[TeamQuota]:
    """The reader's teams that are limited in something, each with what matters most."""
    teams = list(accounts.own_teams(user)[:TEAMS_AT_HOME])
    found = limits.bars_for_many(teams, user) if teams else {}
    shown = []
    for team in teams:
        bars = [bar for bar in found[team.slug] if not bar.unlimited]
        # What is short comes first; the rest stays in order.
        first = sorted(bars, key=lambda bar: not (bar.over or bar.full or bar.queued))[:BARS_AT_HOME]
        if first:
            shown.append(TeamQuota(team, [bar for bar in bars if bar in first], len(bars) - len(first)))
    return shown


def typed(text: str, resource: str, field: str) -> int:
    """A number in people's units (1.5 GPUs, 64 GiB) as base units. Raises `InvalidInput`."""
    return scaled(text, resources.factor(resource), field)


def typed_or_none(text: str, resource: str, field: str) -> int | None:
    """The same, and nothing for an empty field."""
    return typed(text, resource, field) if text.strip() else None


def scaled(text: str, factor: int, field: str) -> int:
    """A number with or without decimals, times `factor`, as an integer. Raises `InvalidInput`."""
    text = text.strip().replace(" ", "").replace(",", ".")
    try:
        number = Decimal(text) if len(text) <= DIGITS_AT_MOST else Decimal("NaN")
        whole = (number * factor).to_integral_value() if number.is_finite() else None
    except InvalidOperation:
        whole = None
    if whole is None or whole < 0 or whole > 10**15:
        sentence = "Type a number from 0 on, such as 4 or 1.5."
        raise InvalidInput(sentence, errors={field: [sentence]})
    return int(whole)


def as_typed(amount: int | None, resource: str) -> str:
    """Base units as people type them, exactly: what is sent back unchanged is unchanged."""
    if amount is None:
        return ""
    text = f"{Decimal(amount) / resources.factor(resource):.6f}"
    return text.rstrip("0").rstrip(".")


def unit_of(resource: str) -> str:
    """What a number of it counts."""
    return {
        resources.MEMORY: "GiB",
        resources.DISK: "GiB",
        resources.CPU: "cores",
        resources.WORKSPACES: "workspaces",
    }.get(resource.removeprefix(resources.SIMULATED), "instances" if resource.startswith("mig:") else "GPUs")
