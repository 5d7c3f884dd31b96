"""Usage of teams, members and the site at one time. Checks whether a further request fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from portal.common.reasons.codes import Rule
from portal.quota.limits.shares import (
    SHARE_ONE,
    dominant_share,
    fair_parts,
    fair_parts_above,
    weighted_use,
)
from portal.quota.limits.tree import NO_LIMIT, Node, QuotaTree
from portal.quota.limits.types import Fungibility, Team
from portal.scheduling.engine.model import Reservation, Snapshot, Workload

DEFAULT_FUNGIBILITY = Fungibility()
Shortfall = tuple[Rule, str]
PromisedAmounts = Mapping[str, Mapping[str, int]]
"""Promised future usage: amounts by team and resource."""


class Calendar:
    """Reservations, and the amounts of them that are blocked for other teams."""

    __slots__ = ("reservations",)

    def __init__(self, reservations: Iterable[Reservation]) -> None:
        self.reservations = sorted(
            reservations, key=lambda reservation: (reservation.start_s, reservation.id)
        )
        for reservation in self.reservations:
            if reservation.end_s <= reservation.start_s:
                raise ValueError(f"the booking {reservation.id!r} ends before it begins")

    def peak(self, resource: str, start_s: int, end_s: int, usage: Usage, team: str = "") -> int:
        """Return the peak of other teams' unused reserved amounts in a period."""
        near = [
            reservation
            for reservation in self.reservations
            if reservation.start_s < end_s
            and reservation.end_s > start_s
            and reservation.team != team
            and resource in reservation.amounts
        ]
        return max(
            (
                self._reserved_at(near, max(start_s, reservation.start_s), resource, usage)
                for reservation in near
            ),
            default=0,
        )

    @staticmethod
    def _reserved_at(near: Sequence[Reservation], at_s: int, resource: str, usage: Usage) -> int:
        booked: dict[str, int] = {}
        for reservation in near:
            if reservation.start_s <= at_s < reservation.end_s:
                booked[reservation.team] = booked.get(reservation.team, 0) + reservation.amounts[resource]
        return sum(max(0, amount - usage.team_use(team, resource)) for team, amount in booked.items())


class Usage:
    """Usage by team, member and site. Raises KeyError for an unknown team."""

    __slots__ = (
        "_delays_ms",
        "_fungibility",
        "_rates_milli",
        "_share_delay_s",
        "_weighted",
        "_weights",
        "calendar",
        "capacity",
        "member_use",
        "site_limits",
        "team_used",
        "teams",
        "tree",
        "used",
    )

    def __init__(self, snapshot: Snapshot) -> None:
        self.tree = QuotaTree(snapshot.teams, snapshot.cohorts)
        self.teams: dict[str, Team] = {team.name: team for team in snapshot.teams}
        self._fungibility = {cohort.name: cohort.fungibility for cohort in snapshot.cohorts}
        self.calendar = Calendar(snapshot.reservations)
        self.capacity = dict(snapshot.capacity)
        self.site_limits = dict(snapshot.site_limits)
        self.used: dict[str, int] = {}
        self.team_used: dict[tuple[str, str], int] = {}
        self.member_use: dict[tuple[str, str, str], int] = {}
        self._delays_ms: dict[str, int] = {}
        self._share_delay_s = snapshot.policy.share_delay_s
        self._rates_milli = snapshot.rates_milli
        self._weighted: dict[tuple[str, str], int] = {}
        self._weights: dict[int, tuple[Mapping[str, int], int]] = {}

    def clone(self) -> Usage:
        twin = Usage.__new__(Usage)
        twin.tree = self.tree.clone()
        twin.teams, twin.calendar = self.teams, self.calendar
        twin._fungibility = self._fungibility
        twin.capacity, twin.site_limits = self.capacity, self.site_limits
        twin.used, twin.team_used = dict(self.used), dict(self.team_used)
        twin.member_use, twin._delays_ms = dict(self.member_use), dict(self._delays_ms)
        twin._share_delay_s = self._share_delay_s
        twin._rates_milli, twin._weighted = self._rates_milli, dict(self._weighted)
        twin._weights = self._weights
        return twin

    def add(self, workload: Workload) -> None:
        self._change(workload, 1)

    def remove(self, workload: Workload) -> None:
        self._change(workload, -1)

    def add_all(self, workloads: Iterable[Workload]) -> None:
        """Add many workloads at once."""
        sums: dict[str, dict[str, int]] = {}
        for workload in workloads:
            team, amounts = workload.team, workload.amounts
            total = sums.get(team)
            if total is None:
                total = sums[team] = {}
            for resource, amount in amounts.items():
                total[resource] = total.get(resource, 0) + amount
            if self.teams[team].member_shares:
                self._add_weighted(workload, 1)
            if self.teams[team].capped:
                for resource in self.teams[team].caps_of(workload.user):
                    if resource in amounts:
                        key = (team, workload.user, resource)
                        self.member_use[key] = self.member_use.get(key, 0) + amounts[resource]
        for team, total in sums.items():
            self.tree.add(team, total)
            for resource, amount in total.items():
                self.used[resource] = self.used.get(resource, 0) + amount
                self.team_used[team, resource] = self.team_used.get((team, resource), 0) + amount
        self._delays_ms.clear()

    def _change(self, workload: Workload, sign: int) -> None:
        team = workload.team
        capped = self.teams[team].caps_of(workload.user)
        for resource, amount in workload.amounts.items():
            delta = sign * amount
            self.used[resource] = self.used.get(resource, 0) + delta
            self.team_used[team, resource] = self.team_used.get((team, resource), 0) + delta
            if resource in capped:
                key = (team, workload.user, resource)
                self.member_use[key] = self.member_use.get(key, 0) + delta
        (self.tree.add if sign > 0 else self.tree.remove)(team, workload.amounts)
        if self.teams[team].member_shares:
            self._add_weighted(workload, sign)
        if len(self.tree.cohorts) > 1:
            # The shares of parent cohorts and of their other teams change too.
            self._delays_ms.clear()
        else:
            self._delays_ms.pop(team, None)

    def _add_weighted(self, workload: Workload, sign: int) -> None:
        key = (workload.team, workload.user)
        self._weighted[key] = self._weighted.get(key, 0) + sign * self.weighted(workload.amounts)

    def weighted(self, amounts: Mapping[str, int]) -> int:
        """Return how much the amounts add to a member's use, in milli-GPU."""
        known = self._weights.get(id(amounts))
        if known is None:
            # Keep the amounts, so that their id is not reused while the result is cached.
            known = self._weights[id(amounts)] = (amounts, weighted_use(amounts, self._rates_milli))
        return known[1]

    def weighted_now(self, team: str, user: str) -> int:
        """Return the member's current use in milli-GPU, in a team with member shares."""
        return self._weighted.get((team, user), 0)

    def member_share(self, team: str, user: str) -> int:
        """Return the member's current and recent use in milli-GPU. Members with less use go first."""
        return self.teams[team].member_avg.get(user, 0) + self.weighted_now(team, user)

    def set_team(self, team: Team) -> None:
        """Replace a team whose limits are unchanged. Does not affect existing copies."""
        self.teams = {**self.teams, team.name: team}
        self._delays_ms.pop(team.name, None)

    def teams_with_member_shares(self) -> frozenset[str]:
        """Return the teams whose members take turns by use."""
        return frozenset(name for name, team in self.teams.items() if team.member_shares)

    def capped_teams(self) -> frozenset[str]:
        """Return the teams with capped members."""
        return frozenset(name for name, team in self.teams.items() if team.capped)

    def fungibility(self, team: str) -> Fungibility:
        """Return the cohort's policy for when requests take their next flavor, or the default."""
        return self._fungibility.get(self.teams[team].cohort, DEFAULT_FUNGIBILITY)

    def team_use(self, team: str, resource: str) -> int:
        return self.team_used.get((team, resource), 0)

    def delay_ms(self, team: str) -> int:
        """Return the delay of the team's requests in ms, from current and past borrowing."""
        delay_ms = self._delays_ms.get(team)
        if delay_ms is None:
            node = self.tree.teams[team]
            own = fair_parts(dominant_share(node, self.teams[team].borrowed_avg), node)
            delay_ms = self._delays_ms[team] = self.delay_of_ms(own + fair_parts_above(node))
        return delay_ms

    def delay_of_ms(self, parts: int) -> int:
        """Return the delay in ms for `parts` fair shares (unit: `SHARE_ONE`) of lent capacity."""
        return parts * self._share_delay_s * 1000 // SHARE_ONE

    def lacks_gpu_hours(self, workload: Workload) -> bool:
        """Return whether the workload needs accelerators and its team's GPU-hours are spent."""
        return not self.teams[workload.team].funded and any(
            amount and resource.startswith(("gpu:", "mig:")) for resource, amount in workload.amounts.items()
        )

    def shortfall(self, workload: Workload, at_s: int, *, booked: bool = True) -> Shortfall | None:
        """Return the first rule that keeps the workload from starting at `at_s`, or None if it fits."""
        team = self.teams[workload.team]
        if self.lacks_gpu_hours(workload):
            return (Rule.LEDGER, "")
        for resource, cap in team.caps_of(workload.user).items():
            amount = workload.amounts.get(resource, 0)
            if amount and self.member_use.get((team.name, workload.user, resource), 0) + amount > cap:
                return (Rule.USER_CAP, resource)
        resource = self.tree.shortfall(team.name, workload.amounts)
        if resource:
            own = self.own_limit(team.name, resource)
            used = self.tree.teams[team.name].usage.get(resource, 0)
            needed = workload.amounts[resource]
            return (Rule.TEAM_LIMIT if used + needed > own else Rule.COHORT, resource)
        for resource, amount in workload.amounts.items():
            if amount > 0:
                rule = self._short_at_site(workload, resource, amount, at_s, booked=booked)
                if rule is not None:
                    return (rule, resource)
        return None

    def _short_at_site(
        self, workload: Workload, resource: str, amount: int, at_s: int, *, booked: bool = True
    ) -> Rule | None:
        after = self.used.get(resource, 0) + amount
        if resource in self.site_limits and after > self.site_limits[resource]:
            return Rule.SITE_LIMIT
        if resource in self.capacity:
            if after > self.capacity[resource]:
                return Rule.CAPACITY
            if booked and self.calendar.reservations:
                end_s = at_s + (1 if workload.preemptible else workload.duration_s)
                reserved = self.calendar.peak(resource, at_s, end_s, self, workload.team)
                if after + reserved > self.capacity[resource]:
                    return Rule.BOOKING
        return None

    def short_resources(self, workload: Workload, at_s: int) -> frozenset[str]:
        """Return the requested resources that quota, the site or its calendar lacks."""
        amounts = ((name, amount) for name, amount in workload.amounts.items() if amount > 0)
        node = self.tree.teams[workload.team]
        return frozenset(
            name
            for name, amount in amounts
            if node.available(name) < amount or self._short_at_site(workload, name, amount, at_s)
        )

    def capped_resources(self, workload: Workload) -> frozenset[str]:
        """Return the resources in which the member would exceed a cap."""
        return frozenset(
            name
            for name, cap in self.teams[workload.team].caps_of(workload.user).items()
            if (amount := workload.amounts.get(name, 0))
            and self.member_use.get((workload.team, workload.user, name), 0) + amount > cap
        )

    def own_limit(self, team: str, resource: str) -> int:
        """Return the maximum that the team could use on an empty site, by its own and its cohorts' limits."""
        return self.tree.teams[team].potential(resource)

    def permanent_shortfall(self, workload: Workload) -> Shortfall | None:
        """Return the first rule that prevents the workload's start even on an empty site, or None."""
        team = self.teams[workload.team]
        for resource, amount in workload.amounts.items():
            if resource in self.capacity and amount > self.capacity[resource]:
                return (Rule.CAPACITY, resource)
        for resource, amount in workload.amounts.items():
            if resource in self.site_limits and amount > self.site_limits[resource]:
                return (Rule.SITE_LIMIT, resource)
            if amount and amount > self.own_limit(team.name, resource):
                return (Rule.TEAM_LIMIT, resource)
            if amount > team.caps_of(workload.user).get(resource, amount):
                return (Rule.USER_CAP, resource)
        return None

    def copies_at_site(self, workload: Workload) -> int:
        """Return how often the workload would fit into the site's capacity."""
        return min(
            (
                self.capacity[resource] // amount
                for resource, amount in workload.amounts.items()
                if amount > 0 and resource in self.capacity
            ),
            default=0,
        )

    def shortfall_amounts(self, workload: Workload, shortfall: Shortfall) -> tuple[int, int, int]:
        """Return the requested amount, free amount and limit of the resource for the blocking rule."""
        rule, resource = shortfall
        amount = workload.amounts.get(resource, 0)
        node = self.tree.teams[workload.team]
        if rule is Rule.USER_CAP:
            cap = self.teams[workload.team].caps_of(workload.user)[resource]
            return amount, cap - self.member_use.get((workload.team, workload.user, resource), 0), cap
        if rule in (Rule.TEAM_LIMIT, Rule.COHORT):
            return amount, max(0, node.available(resource)), self.own_limit(workload.team, resource)
        limits = self.site_limits if rule is Rule.SITE_LIMIT else self.capacity
        limit = limits.get(resource, 0)
        return amount, max(0, limit - self.used.get(resource, 0)), limit

    def violation(self) -> str:
        """Return the first exceeded limit as text (quota, member, site or capacity), or an empty string."""
        for name, limits in (("site limit", self.site_limits), ("capacity", self.capacity)):
            for resource, limit in limits.items():
                if self.used.get(resource, 0) > limit:
                    return f"{self.used[resource]} {resource} of the {name} {limit}"
        for (team, user, resource), amount in self.member_use.items():
            if amount > self.teams[team].caps_of(user)[resource]:
                return f"{user or 'a member'} of {team} holds {amount} {resource}"
        return self.tree.overrun()


def with_fallbacks(usage: Usage, choices: Sequence[Workload]) -> Workload:
    """Return the request on the first flavor that limits could ever allow, with later flavors as fallbacks.

    `choices` has the request on each flavor, in order of preference. If limits allow none, returns the first.
    """
    allowed = [choice for choice in choices if usage.permanent_shortfall(choice) is None] or choices[:1]
    return replace(allowed[0], fallbacks=tuple(allowed[1:]))


def borrows(usage: Usage, team: str, resources: Iterable[str]) -> bool:
    """Return whether the team borrows any of the resources."""
    node = usage.tree.teams[team]
    return any(node.borrowed(resource) > 0 for resource in resources)


def borrows_any(node: Node) -> bool:
    """Return whether the team or cohort borrows anything."""
    return any(node.borrowed(resource) > 0 for resource in node.root_names)


def exceeds_nominal(usage: Usage, team: str, resources: Iterable[str]) -> bool:
    """Return whether the team exceeds its nominal quota of any of the resources."""
    node = usage.tree.teams[team]
    return any(
        node.usage.get(resource, 0) > node.quota[resource]
        for resource in resources
        if resource in node.root_names
    )


def within_nominal(usage: Usage, workload: Workload, promised: PromisedAmounts | None = None) -> bool:
    """Return whether the team stays within nominal quota with the workload and its promised amounts."""
    return stays_within(usage, workload.team, workload.amounts.items(), promised)


def stays_within(
    usage: Usage, team: str, amounts: Iterable[tuple[str, int]], promised: PromisedAmounts | None = None
) -> bool:
    """Return whether the team stays within nominal quota with `amounts` and its promised amounts."""
    node = usage.tree.teams[team]
    more = promised.get(team) if promised else None
    for resource, amount in amounts:
        if amount > 0 and resource in node.root_names:
            used = node.usage.get(resource, 0) + (more.get(resource, 0) if more else 0)
            if used + amount > node.quota.get(resource, 0):
                return False
    return True


__all__ = [
    "NO_LIMIT",
    "Calendar",
    "PromisedAmounts",
    "Shortfall",
    "Usage",
    "borrows",
    "borrows_any",
    "exceeds_nominal",
    "stays_within",
    "with_fallbacks",
    "within_nominal",
]
