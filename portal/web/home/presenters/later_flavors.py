"""The fields for a new workspace's further flavors, in order of preference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from portal.catalog.models import Flavor
from portal.common.texts import strip_nul
from portal.workspaces.order import MAX_START_WITHIN_S

FIELDS = ("second", "third")
MAX_DIGITS = 5


@dataclass(frozen=True, slots=True)
class LaterFlavors:
    """The submitted slugs by field, and the wait in minutes as entered."""

    slugs: tuple[str, ...] = ()
    minutes: str = ""

    @classmethod
    def submitted(cls, data: Mapping[str, str]) -> LaterFlavors:
        """Return the submitted fields, without empty choices."""
        slugs = (strip_nul(data.get(field, "")) for field in FIELDS)
        minutes = strip_nul(data.get("start_within", "")).strip()[:MAX_DIGITS]
        return cls(tuple(slug for slug in slugs if slug), minutes)

    @property
    def start_within_s(self) -> int:
        """The wait in seconds; -1 if it is not a number, which every order rejects."""
        if not self.minutes:
            return 0
        return int(self.minutes) * 60 if self.minutes.isdecimal() else -1

    @property
    def valid(self) -> bool:
        return 0 <= self.start_within_s <= MAX_START_WITHIN_S


@dataclass(frozen=True, slots=True)
class LaterFlavorField:
    """A list from which to choose a further flavor."""

    name: str
    label: str
    chosen: str
    flavors: tuple[Flavor, ...]


def fields(later: LaterFlavors, flavors: Sequence[Flavor], first: Flavor | None) -> list[LaterFlavorField]:
    """Return the lists of further flavors. All are real or all simulated, like the first flavor."""
    others = tuple(
        flavor
        for flavor in flavors
        if first is not None and flavor != first and flavor.simulated == first.simulated
    )
    chosen = [*later.slugs, *("" for _field in FIELDS)]
    labels = (_("Second choice"), _("Third choice"))
    return [
        LaterFlavorField(name, label, slug, others)
        for name, label, slug in zip(FIELDS, labels, chosen, strict=False)
    ]
