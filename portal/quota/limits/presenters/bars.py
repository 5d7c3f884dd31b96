"""Presents a team's usage of one resource as numbers, text and a bar."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.utils.translation import gettext as _

from portal.common.formatting import format_amount, format_resource
from portal.quota.limits import resources

_ORDER = (resources.GPU, resources.CPU, resources.MEMORY, resources.DISK, resources.WORKSPACES)


def sort_resources(names: Iterable[str]) -> list[str]:
    """Sort resources for display: accelerators, then other resources; simulated ones last."""

    def place(name: str) -> tuple[bool, int, str]:
        simulated = name.startswith(resources.SIMULATED) or ":simulated-" in name
        plain = name.removeprefix(resources.SIMULATED)
        return simulated, (_ORDER.index(plain) + 1 if plain in _ORDER else 0), name

    return sorted(names, key=place)


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """One resource of one team; amounts in base units.

    - `quota`: includes `grant`; None if no quota names the resource.
    - `limit`: the most that the team could ever use (quota, borrowing, site limit); None: no limit.
    - `available`: what the team could still use now.
    - `lent`: the part of the team's own quota that others use.
    - `mine`, `cap`: the user's own usage and cap.
    """

    resource: str
    used: int
    queued: int = 0
    borrowed: int = 0
    quota: int | None = None
    grant: int = 0
    lendable: int | None = None
    lent: int = 0
    limit: int | None = None
    available: int | None = None
    site_limited: bool = False
    mine: int = 0
    cap: int | None = None

    @property
    def label(self) -> str:
        return format_resource(self.resource)

    @property
    def simulated(self) -> bool:
        return self.resource.startswith(resources.SIMULATED) or ":simulated-" in self.resource

    @property
    def excess(self) -> int:
        """The usage above the limit, after a limit was lowered or a grant ended."""
        return max(0, self.used - self.limit) if self.limit is not None else 0

    @property
    def is_full(self) -> bool:
        return self.available == 0

    # Text.

    def _format(self, amount: int | None) -> str:
        return _("no limit") if amount is None else format_amount(self.resource, amount)

    @property
    def used_text(self) -> str:
        return self._format(self.used)

    @property
    def queued_text(self) -> str:
        return self._format(self.queued)

    @property
    def borrowed_text(self) -> str:
        return self._format(self.borrowed)

    @property
    def quota_text(self) -> str:
        return _("not set") if self.quota is None else self._format(self.quota)

    @property
    def grant_text(self) -> str:
        return self._format(self.grant)

    @property
    def lent_text(self) -> str:
        return self._format(self.lent)

    @property
    def limit_text(self) -> str:
        return self._format(self.limit)

    @property
    def available_text(self) -> str:
        return self._format(self.available)

    @property
    def excess_text(self) -> str:
        return self._format(self.excess)

    @property
    def own_use_text(self) -> str:
        return self._format(self.mine)

    @property
    def cap_text(self) -> str:
        return self._format(self.cap)

    @property
    def head(self) -> str:
        """The summary beside the name: “3 of 4”."""
        used = {"used": self.used_text}
        if self.limit is None and self.quota is None:
            return _("%(used)s in use, no limit") % used
        if not self.quota:
            return _("%(used)s of up to %(limit)s") % {**used, "limit": self.limit_text}
        text = _("%(used)s of %(quota)s") % {**used, "quota": self.quota_text}
        if self.borrowed:
            text += _(", %(borrowed)s borrowed") % {"borrowed": self.borrowed_text}
        return text

    @property
    def sentence(self) -> str:
        """The content of the bar as a sentence, for screen readers."""
        parts = [_("%(resource)s: %(used)s in use") % {"resource": self.label, "used": self.used_text}]
        if self.borrowed:
            parts.append(_("%(amount)s borrowed") % {"amount": self.borrowed_text})
        if self.queued:
            parts.append(_("%(amount)s waiting") % {"amount": self.queued_text})
        if self.quota is not None:
            parts.append(_("quota %(amount)s") % {"amount": self.quota_text})
        if self.limit is not None:
            parts.append(_("up to %(amount)s") % {"amount": self.limit_text})
        else:
            parts.append(_("no limit"))
        if self.excess:
            parts.append(_("%(amount)s over the limit") % {"amount": self.excess_text})
        return ", ".join(parts)

    # Drawing: integers, in percent of the scale.

    @property
    def scale(self) -> int:
        """The amount at full width: the quota or, if larger, what the team could use now.

        Excludes the part of a larger limit that others use, so that a bar with nothing left is full.
        """
        reach = (self.limit or 0) if self.available is None else self.used + self.available
        return max(reach, self.quota or 0, self.used + self.queued, 1)

    def _percent(self, amount: int) -> int:
        return min(100, round(100 * amount / self.scale))

    @property
    def own_percent(self) -> int:
        return self._percent(self.used - self.borrowed)

    @property
    def borrowed_percent(self) -> int:
        return self._percent(self.used) - self.own_percent

    @property
    def used_percent(self) -> int:
        return self._percent(self.used)

    @property
    def queued_percent(self) -> int:
        return self._percent(self.used + self.queued) - self.used_percent

    @property
    def quota_percent(self) -> int | None:
        """The position of the quota's mark, in percent of the bar; None if the bar ends at the quota."""
        if not self.quota or self.quota >= self.scale:
            return None
        return self._percent(self.quota)

    @property
    def limit_percent(self) -> int | None:
        """The position of the limit's mark, in percent of the bar; None if the bar ends there."""
        if self.limit is None or self.limit >= self.scale:
            return None
        return self._percent(self.limit)

    @property
    def unlimited(self) -> bool:
        return self.limit is None and self.quota is None
