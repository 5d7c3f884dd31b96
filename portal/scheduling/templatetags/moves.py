"""Template tags about moves, for pages of other apps."""

from __future__ import annotations

from typing import Any

from django import template

from portal.scheduling import operator_moves
from portal.workspaces.models import Workspace

register = template.Library()


@register.inclusion_tag("scheduling/cancel_move.html", takes_context=True)
def cancel_move(context: dict[str, Any], workspace: Workspace) -> dict[str, Any]:
    """Render the button that cancels a pending move, for operators. Renders nothing without a move."""
    offered = context["request"].user.operates and operator_moves.is_pending(workspace)
    return {"offered": offered, "workspace": workspace, "csrf_token": context.get("csrf_token")}
