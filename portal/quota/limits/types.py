"""Values of quota: what teams and cohorts may hold, by resource (`portal.quota.limits.resources`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Amounts = Mapping[str, int]
WEIGHT_ONE = 1000


@dataclass(frozen=True, slots=True)
class Limit:
    """A team's or cohort's part in one resource. `None` limits neither borrowing nor lending."""

    nominal: int = 0
    borrowing: int | None = None
    lending: int | None = None


@dataclass(frozen=True, slots=True)
class Cohort:
    """A group inside which unused quota is lent. Its own limits are shared by its members."""

    name: str
    parent: str = ""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    weight_milli: int = WEIGHT_ONE


@dataclass(frozen=True, slots=True)
class Team:
    """Who pays. `borrowed_avg` is the decayed mean of what it borrowed (`shares.decayed`).

    `user_caps` bound each member alone, `member_caps` one member instead. `funded` is false when the
    ledger has nothing left. `reclaim` says whether it may take back from borrowers of its cohort.
    """

    name: str
    cohort: str = ""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    weight_milli: int = WEIGHT_ONE
    user_caps: Amounts = field(default_factory=dict)
    member_caps: Mapping[str, Amounts] = field(default_factory=dict)
    borrowed_avg: Amounts = field(default_factory=dict)
    funded: bool = True
    reclaim: bool = True

    @property
    def capped(self) -> bool:
        """Whether it matters which member asks."""
        return bool(self.user_caps or self.member_caps)

    def caps_of(self, user: str) -> Amounts:
        """The caps of one member: each member's, but where others are set."""
        own = self.member_caps.get(user)
        return {**self.user_caps, **own} if own else self.user_caps
