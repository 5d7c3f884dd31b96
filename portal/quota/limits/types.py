"""Value types of quota: limits of teams and cohorts by resource (`portal.quota.limits.resources`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Amounts = Mapping[str, int]
WEIGHT_ONE = 1000


@dataclass(frozen=True, slots=True)
class Limit:
    """A team's or cohort's limits for one resource. `None`: borrowing or lending is not limited."""

    nominal: int = 0
    borrowing: int | None = None
    lending: int | None = None


@dataclass(frozen=True, slots=True)
class Fungibility:
    """When a request tries its next flavor, with the defaults of Kueue's `flavorFungibility`.

    - `borrow_first`: only after it cannot borrow quota for a flavor (`whenCanBorrow: Borrow`).
    - `preempt_first`: only after it cannot preempt for a flavor (`whenCanPreempt: Preempt`).
    """

    borrow_first: bool = True
    preempt_first: bool = False


@dataclass(frozen=True, slots=True)
class Cohort:
    """A group that lends unused quota to its members. Its members share its own limits.

    `fungibility` is for requests that list several flavors.
    """

    name: str
    parent: str = ""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    weight_milli: int = WEIGHT_ONE
    fungibility: Fungibility = Fungibility()


@dataclass(frozen=True, slots=True)
class Team:
    """A team that is charged.

    - `borrowed_avg`: decayed average of borrowed amounts (`shares.decay_average`).
    - `user_caps`: caps for every member; `member_caps`: caps that override them for one member.
    - `funded`: False if its GPU-hours are spent.
    - `reclaim`: whether the team may reclaim from borrowers in its cohort.
    - `member_shares`: whether its members take turns by use. `member_avg` is the decayed average use of each
      (`shares.weighted_use`).
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
    member_shares: bool = False
    member_avg: Amounts = field(default_factory=dict)

    @property
    def capped(self) -> bool:
        """Whether any member has a cap."""
        return bool(self.user_caps or self.member_caps)

    def caps_of(self, user: str) -> Amounts:
        """Return the caps of one member: those for every member, overridden by the member's own."""
        own = self.member_caps.get(user)
        return {**self.user_caps, **own} if own else self.user_caps
