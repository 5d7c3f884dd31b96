"""Determines the effective policy of a workspace and the source of each value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from django.conf import settings

from portal.reclaim.engine.ladder import UNUSED_S, Policy
from portal.reclaim.engine.terms import ORDER, SETTINGS, Effective, ScopeKind, Source, Terms, merge
from portal.reclaim.engine.unused import HomeRules, rules
from portal.reclaim.engine.week import Week
from portal.reclaim.models import ReclaimPolicy
from portal.workspaces.models import Workspace

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


@dataclass(frozen=True, slots=True)
class ScopeKeys:
    """The attributes of a workspace that policies can target."""

    pool: Any
    template: Any
    flavor: Any
    team: Any
    accelerated: bool


@dataclass(slots=True)
class PolicySet:
    """All policies, read once per pass. `keys` are the primary keys by source."""

    terms: dict[tuple[ScopeKind, Any], Terms]
    keys: dict[Source, Any] = field(default_factory=dict)
    _known: dict[ScopeKeys, Effective] = field(default_factory=dict)

    def effective(self, scope_keys: ScopeKeys) -> Effective:
        """Return the effective policy. Cached."""
        effective = self._known.get(scope_keys)
        if effective is None:
            keys = (None, scope_keys.pool, scope_keys.template, scope_keys.flavor, scope_keys.team)
            layers = [
                terms
                for kind, key in zip(ORDER, keys, strict=True)
                if (terms := self.terms.get((kind, key))) is not None
            ]
            effective = self._known[scope_keys] = merge(
                [site_terms(), *layers], accelerated=scope_keys.accelerated
            )
        return effective

    def home_rules(self, pool: Any, team: Any) -> HomeRules:
        """Return the rules for homes of a team in a pool, by primary keys."""
        keys = ((ScopeKind.SITE, None), (ScopeKind.POOL, pool), (ScopeKind.TEAM, team))
        layers = [self.terms[key] for key in keys if key in self.terms]
        return rules([site_terms(), *layers], notice_s=int(settings.BERTH_HOME_NOTICE_DAYS) * DAY_S)

    def policy(self, scope_keys: ScopeKeys) -> Policy:
        return self.effective(scope_keys).policy

    @property
    def earliest_thresholds(self) -> Thresholds:
        """The smallest values at which a cause may apply to any workspace."""
        layers = [site_terms(), *self.terms.values()]
        notice_s = max(terms.notice_s or 0 for terms in layers)
        weeks = [terms.week for terms in layers if terms.week is not None]
        idle = [limit for terms in layers for limit in (terms.idle_s, terms.idle_gpu_s) if limit]
        idle += [week.after_hours_s for week in weeks if week.after_hours_s]
        # A limit is at least its notice, which may be arbitrarily short.
        seconds = [max(limit - notice_s, 0) for limit in idle]
        seconds += [UNUSED_S for week in weeks if week.stop_at is not None]
        seconds += [max(terms.release_s - notice_s, 0) for terms in layers if terms.release_s]
        unused = [max(terms.gpu_unused_s - notice_s, 0) for terms in layers if terms.gpu_unused_s]
        lives = [max(terms.longest_s - notice_s, 0) for terms in layers if terms.longest_s]
        return Thresholds(
            notice_s,
            min(seconds, default=None),
            min(unused, default=None),
            min(lives, default=None),
            any(terms.stop_when_spent for terms in layers),
        )


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The longest notice, and the shortest limits minus the notice, in seconds. None: no limit."""

    notice_s: int
    idle_s: int | None
    gpu_idle_s: int | None
    life_s: int | None
    budget: bool


def policy_set(rows: Iterable[ReclaimPolicy] | None = None) -> PolicySet:
    """Read all policies, or use `rows` instead (for a preview)."""
    policies = all_rows() if rows is None else list(rows)
    terms = {row.pk: terms_of(row) for row in policies}
    return PolicySet(
        {(ScopeKind(row.scope), _key(row)): terms[row.pk] for row in policies},
        {terms[row.pk].source: row.pk for row in policies},
    )


def all_rows() -> list[ReclaimPolicy]:
    return list(ReclaimPolicy.objects.select_related("pool", "template", "flavor", "team"))


def _key(row: ReclaimPolicy) -> Any:
    return None if row.scope == ScopeKind.SITE else getattr(row, f"{row.scope}_id")


def scope_keys_of(workspace: Workspace) -> ScopeKeys:
    """Return the `ScopeKeys` of a workspace."""
    return ScopeKeys(
        workspace.pool_id,
        workspace.template_id,
        workspace.flavor_id,
        workspace.team_id,
        bool(workspace.resources["accelerators"]["count"]),
    )


def effective_policy(workspace: Workspace) -> Effective:
    """Return the effective policy of one workspace."""
    return policy_set().effective(scope_keys_of(workspace))


def site_terms() -> Terms:
    """Return the site's settings, which apply without a policy."""
    return Terms(
        SETTINGS,
        idle_s=int(settings.BERTH_IDLE_MINUTES) * MINUTE_S,
        idle_gpu_s=int(settings.BERTH_IDLE_GPU_MINUTES) * MINUTE_S,
        notice_s=int(settings.BERTH_RECLAIM_NOTICE_MINUTES) * MINUTE_S,
        stop_when_spent=bool(settings.BERTH_STOP_WHEN_SPENT),
        archive_s=int(settings.BERTH_HOME_ARCHIVE_DAYS) * DAY_S,
        delete_s=int(settings.BERTH_HOME_DELETE_DAYS) * DAY_S,
    )


def terms_of(row: ReclaimPolicy) -> Terms:
    """Return a policy in the engine's form."""

    def seconds(value: int | None, unit_s: int) -> int | None:
        return None if value is None else value * unit_s

    return Terms(
        Source(ScopeKind(row.scope), row.subject.slug if row.subject is not None else ""),
        idle_s=seconds(row.idle_minutes, MINUTE_S),
        idle_gpu_s=seconds(row.idle_gpu_minutes, MINUTE_S),
        gpu_unused_s=seconds(row.gpu_unused_minutes, MINUTE_S),
        longest_s=seconds(row.longest_hours, HOUR_S),
        release_s=seconds(row.release_gpu_minutes, MINUTE_S),
        notice_s=seconds(row.notice_minutes, MINUTE_S),
        stop_when_spent=row.stop_when_spent,
        week=_week(row),
        archive_s=seconds(row.archive_days, DAY_S),
        delete_s=seconds(row.delete_days, DAY_S),
    )


def _week(row: ReclaimPolicy) -> Week | None:
    if row.work_from is None and row.stop_at is None:
        return None
    return Week(
        zone=row.zone,
        days=frozenset(row.days),
        begins=row.work_from,
        ends=row.work_until,
        after_hours_s=row.after_hours_minutes * MINUTE_S if row.after_hours_minutes else None,
        stop_at=row.stop_at,
        start_at=row.start_at,
        holidays=frozenset(date.fromisoformat(day) for day in row.holidays),
    )
