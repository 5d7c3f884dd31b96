"""Differences between two versions: packages added, removed and changed, and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from portal.catalog.environments.models import EnvironmentVersion
from portal.common.formatting import format_memory

MAX_NAMED = 6


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes by package name. `changed` has names with old and new versions.

    `weight_mib` is the growth in MiB, negative if the environment becomes smaller.
    """

    added: tuple[tuple[str, str], ...]
    removed: tuple[str, ...]
    changed: tuple[tuple[str, str, str], ...]
    weight_mib: int
    python: tuple[str, str] | None = None

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.python)

    @property
    def sentence(self) -> str:
        """The changes as text: “numpy 2.1 → 2.2, pandas added, 14 MiB larger”."""
        return ", ".join(self.parts)

    @property
    def parts(self) -> list[str]:
        """The parts of the sentence, with up to `MAX_NAMED` packages of each kind."""
        parts = ["Python {} → {}".format(*self.python)] if self.python else []
        parts += [f"{name} {before} → {now}" for name, before, now in self.changed[:MAX_NAMED]]
        parts += [_("%(name)s added") % {"name": name} for name, _version in self.added[:MAX_NAMED]]
        parts += [_("%(name)s removed") % {"name": name} for name in self.removed[:MAX_NAMED]]
        more = sum(max(0, len(names) - MAX_NAMED) for names in (self.changed, self.added, self.removed))
        if more:
            parts.append(_("%(count)d more") % {"count": more})
        if not parts:
            parts.append(_("same packages"))
        if self.weight_mib:
            size = format_memory(abs(self.weight_mib))
            text = _("%(size)s larger") if self.weight_mib > 0 else _("%(size)s smaller")
            parts.append(text % {"size": size})
        return parts


def compare_versions(before: EnvironmentVersion, now: EnvironmentVersion) -> Changes:
    """Return the changes from `before` to `now`."""
    old, new = _by_name(before.packages), _by_name(now.packages)
    weight_mib = now.size_mib - before.size_mib
    return compare_packages(old, new, weight_mib=weight_mib, pythons=(before.python, now.python))


def compare_packages(
    old: Mapping[str, str], new: Mapping[str, str], *, weight_mib: int = 0, pythons: tuple[str, str]
) -> Changes:
    """Return the differences between two versions, sorted by package name; `pythons` is (old, new)."""
    return Changes(
        added=tuple((name, new[name]) for name in sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(
            (name, old[name], new[name]) for name in sorted(old.keys() & new.keys()) if old[name] != new[name]
        ),
        weight_mib=weight_mib,
        python=pythons if pythons[0] != pythons[1] else None,
    )


def _by_name(packages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {str(package["name"]): str(package["version"]) for package in packages}
