"""Merges several policies into the values that apply to a workspace, with their sources.

For each value, the narrowest of site, pool, template and flavor applies. A team can only be stricter: the
shorter limit applies, weeks are added, and the notice is not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from portal.reclaim.engine.ladder import Policy
from portal.reclaim.engine.week import Week


class ScopeKind(StrEnum):
    """The scope of a policy, from the widest to the narrowest. Team policies can only be stricter."""

    SITE = "site"
    POOL = "pool"
    TEMPLATE = "template"
    FLAVOR = "flavor"
    TEAM = "team"


ORDER = (ScopeKind.SITE, ScopeKind.POOL, ScopeKind.TEMPLATE, ScopeKind.FLAVOR, ScopeKind.TEAM)
LIMITS = ("idle_s", "idle_gpu_s", "gpu_unused_s", "longest_s", "release_s")


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a value: a policy (`kind`, slug of its target), or the site's settings (None)."""

    kind: ScopeKind | None
    name: str = ""

    @property
    def key(self) -> str:
        """The source in REST: `flavor:a100-full`, or `settings` without a policy."""
        if self.kind is None:
            return "settings"
        return f"{self.kind}:{self.name}" if self.name else self.kind.value


SETTINGS = Source(None)


@dataclass(frozen=True, slots=True)
class Terms:
    """The values of one policy, in seconds. None inherits; a limit of 0 disables.

    `idle_s` is for workspaces without accelerators, `idle_gpu_s` for workspaces with accelerators;
    `archive_s` and `delete_s` are for homes (`engine.unused`).
    """

    source: Source
    idle_s: int | None = None
    idle_gpu_s: int | None = None
    gpu_unused_s: int | None = None
    longest_s: int | None = None
    release_s: int | None = None
    notice_s: int | None = None
    stop_when_spent: bool | None = None
    week: Week | None = None
    archive_s: int | None = None
    delete_s: int | None = None


@dataclass(frozen=True, slots=True)
class Effective:
    """The effective policy, and the sources of its values by name."""

    policy: Policy
    sources: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)


def merge(layers: Iterable[Terms], *, accelerated: bool) -> Effective:
    """Merge `layers`: settings first, then in the order of `ORDER`."""
    values: dict[str, int] = {}
    sources: dict[str, tuple[Source, ...]] = {}
    weeks: list[tuple[Week, Source]] = []
    notice_s, spent = 0, False
    for terms in layers:
        team = terms.source.kind is ScopeKind.TEAM
        for name in LIMITS:
            value: int | None = getattr(terms, name)
            present = values.get(name, 0)
            if value is None or (team and (not value or (present and value >= present))):
                continue
            values[name], sources[name] = value, (terms.source,)
        if terms.notice_s is not None and not team:
            notice_s, sources["notice_s"] = terms.notice_s, (terms.source,)
        if terms.stop_when_spent is not None and (terms.stop_when_spent or not team):
            spent, sources["stop_when_spent"] = terms.stop_when_spent, (terms.source,)
        if terms.week is not None:
            weeks = [*weeks, (terms.week, terms.source)] if team else [(terms.week, terms.source)]
    if weeks:
        sources["weeks"] = tuple(source for _week, source in weeks)
    idle = "idle_gpu_s" if accelerated else "idle_s"

    def limit(name: str) -> int | None:
        value = values.get(name, 0)
        # At least the notice: otherwise there would be no idle time to report.
        return max(value, notice_s) if value else None

    policy = Policy(
        gpu_idle_s=limit("gpu_unused_s") if accelerated else None,
        idle_s=limit(idle),
        notice_s=notice_s,
        longest_s=values.get("longest_s") or None,
        weeks=tuple(week for week, _source in weeks),
        stop_when_spent=spent and accelerated,
        release_s=limit("release_s") if accelerated else None,
    )
    renamed = {
        "idle_s": sources.get(idle, ()),
        "gpu_idle_s": sources.get("gpu_unused_s", ()) if accelerated else (),
        "release_s": sources.get("release_s", ()) if accelerated else (),
        "stop_when_spent": sources.get("stop_when_spent", ()) if accelerated else (),
        **{name: sources.get(name, ()) for name in ("longest_s", "notice_s", "weeks")},
    }
    return Effective(policy, {name: value for name, value in renamed.items() if value})
