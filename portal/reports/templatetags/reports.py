"""What the page of a workspace shows of how it uses its GPUs."""

from __future__ import annotations

from typing import Any

from django import template

from portal.common.reasons.wording import message_of, next_action_of
from portal.reports import presenters
from portal.reports.efficiency import efficiency_of
from portal.workspaces.models import Workspace

register = template.Library()


@register.inclusion_tag("reports/efficiency.html")
def efficiency(workspace: Workspace) -> dict[str, Any]:
    """The share of its GPU time that it used, and the hint. Nothing where too little was measured."""
    found = efficiency_of(workspace)
    if found is None or found.used is None:
        return {"found": None}
    return {
        "found": found,
        "used": presenters.percent(found.used),
        "measured": presenters.percent(found.measured),
        "hint": message_of(found.hint) if found.hint is not None else "",
        "advice": next_action_of(found.hint) if found.hint is not None else "",
    }
