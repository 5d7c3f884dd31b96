"""The steps for unused homes: warn, archive, and allow deletion. Pure, without a clock.

Time is counted in observed seconds: `advance` adds it up, and gaps, such as outages of the portal or clock
changes, do not count. Using a home resets its time. Unused homes are archived, and an administrator may later
delete the archives; both only after a fully observed notice period.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from portal.reclaim.engine.terms import ScopeKind, Source, Terms

MAX_PASS_GAP_S = 3600.0
"""Maximum seconds between two passes. Longer or negative gaps are not counted."""


class HomeStep(StrEnum):
    """The step that is due. `TAKE` archives a home, or allows the deletion of an archived one."""

    NOTHING = "nothing"
    WARN = "warn"
    WITHDRAW = "withdraw"
    TAKE = "take"


@dataclass(frozen=True, slots=True)
class HomeRules:
    """The rules for a home, in seconds. None disables."""

    archive_s: int | None = None
    delete_s: int | None = None
    notice_s: int = 0
    sources: Mapping[str, Source] = field(default_factory=dict)

    def limit_s(self, *, archived: bool) -> int | None:
        """Return the time until archiving or deletion in seconds, at least the notice."""
        limit = self.delete_s if archived else self.archive_s
        return max(limit, self.notice_s) if limit else None


@dataclass(frozen=True, slots=True)
class HomeIdleState:
    """How long a home has been unused or archived, and how long ago its user was warned."""

    archived: bool = False
    unused_s: float = 0.0
    warned_s: float | None = None


@dataclass(frozen=True, slots=True)
class HomeVerdict:
    """The step that is due, and the minimum time left; None if there is no limit."""

    step: HomeStep
    left_s: float | None = None
    limit_s: int | None = None


def rules(layers: Iterable[Terms], *, notice_s: int) -> HomeRules:
    """Merge `layers`: settings first, then in the order of `terms.ORDER`.

    The narrower of site and pool applies. A team can only archive earlier, and cannot set deletion.
    """
    values: dict[str, int] = {}
    sources: dict[str, Source] = {}
    for terms in layers:
        team = terms.source.kind is ScopeKind.TEAM
        for name in ("archive_s", "delete_s"):
            value: int | None = getattr(terms, name)
            present = values.get(name, 0)
            loosens = not value or (present and value >= present) or name == "delete_s"
            if value is None or (team and loosens):
                continue
            values[name], sources[name] = value, terms.source
    return HomeRules(values.get("archive_s") or None, values.get("delete_s") or None, notice_s, sources)


def advance(idle_state: HomeIdleState, elapsed_s: float, *, used: bool, archived: bool) -> HomeIdleState:
    """Return the state `elapsed_s` seconds after the last pass."""
    if used or archived != idle_state.archived:
        return HomeIdleState(archived)
    if not 0 < elapsed_s <= MAX_PASS_GAP_S:
        return idle_state
    warned_s = None if idle_state.warned_s is None else idle_state.warned_s + elapsed_s
    return replace(idle_state, unused_s=idle_state.unused_s + elapsed_s, warned_s=warned_s)


def decide_home(idle_state: HomeIdleState, home_rules: HomeRules) -> HomeVerdict:
    """Return the step that is due for a home."""
    limit_s = home_rules.limit_s(archived=idle_state.archived)
    warned = idle_state.warned_s is not None
    if limit_s is None:
        return HomeVerdict(HomeStep.WITHDRAW if warned else HomeStep.NOTHING)
    near = idle_state.unused_s >= limit_s - home_rules.notice_s
    notice_left_s = home_rules.notice_s - (idle_state.warned_s or 0.0)
    left_s = max(limit_s - idle_state.unused_s, notice_left_s if near else 0.0, 0.0)
    if not warned:
        return HomeVerdict(HomeStep.WARN if near else HomeStep.NOTHING, left_s, limit_s)
    if not near:
        return HomeVerdict(HomeStep.WITHDRAW, left_s, limit_s)
    return HomeVerdict(HomeStep.NOTHING if left_s > 0 else HomeStep.TAKE, left_s, limit_s)
