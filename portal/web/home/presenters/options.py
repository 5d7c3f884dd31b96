"""Summarises the collapsed options of a new workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.form_sections import summary_of
from portal.web.home.presenters.later_flavors import LaterFlavors
from portal.web.home.presenters.new_workspace import NewWorkspaceChoice

SHOWN_ABOVE = ("template", "flavor", "team", "name")
"""Fields that are always visible."""


@dataclass(frozen=True, slots=True)
class Options:
    """The submitted options. `repository` says whether one is entered; `secrets` are the selected names."""

    hours: str
    later: LaterFlavors
    checkpointed: bool
    repository: bool
    secrets: Sequence[str]


def options_summary(choice: NewWorkspaceChoice, options: Options) -> str:
    """Return the differences from the defaults as text."""
    names = {card.flavor.slug: card.flavor.name for card in choice.flavors}
    changes = []
    if choice.environment:
        changes.append(next(row.label for row in choice.environments if row.chosen))
    if options.hours.strip():
        changes.append(_("stops after %(hours)s h") % {"hours": options.hours.strip()})
    changes += [_("or %(flavor)s") % {"flavor": names.get(slug, slug)} for slug in options.later.slugs]
    if options.later.minutes:
        changes.append(_("waits %(minutes)s min") % {"minutes": options.later.minutes})
    if options.repository:
        changes.append(_("a Git repository"))
    if count := len(options.secrets):
        changes.append(ngettext("%(count)s secret", "%(count)s secrets", count) % {"count": count})
    if options.checkpointed:
        changes.append(_("saves checkpoints"))
    return summary_of(changes)


def has_problem(problems: dict[str, Any]) -> bool:
    """Return whether any of the fields with problems is an option."""
    return any(name not in SHOWN_ABOVE for name in problems)
