"""Template tags for the page of a workspace."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django import template
from django.conf import settings
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from portal.common.formatting import format_share
from portal.common.reasons.wording import message_of, next_action_of
from portal.common.templatetags.berth import badge, state_badge
from portal.people.accounts.models import User
from portal.workspaces import engine_queue, presenters
from portal.workspaces.efficiency import efficiency_of
from portal.workspaces.gpus import CHANGEABLE
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.policies import may_operate

register = template.Library()


@register.inclusion_tag("workspaces/unreachable.html", takes_context=True)
def unreachable(context: dict[str, Any]) -> dict[str, Any]:
    """Render the note for browsers that cannot reach workspaces. Hidden until a script has detected that."""
    request: HttpRequest = context["request"]
    origin = f"{request.scheme}://{request.get_host()}"
    return {
        "here": origin,
        "elsewhere": origin.lower() != settings.BERTH_PUBLIC_ORIGIN.lower(),
        "local": settings.BERTH_DOMAIN == "localhost",
        "port": urlsplit(settings.BERTH_PUBLIC_ORIGIN).port or 80,
        "domain": settings.BERTH_DOMAIN,
        "public_url": settings.BERTH_PUBLIC_ORIGIN,
        "probe_url": f"{settings.BERTH_PROBE_ORIGIN}/",
    }


@register.simple_tag
def workspace_badge(workspace: Workspace) -> SafeString:
    """Render the state of a workspace, with another word while it waits at its engine."""
    if engine_queue.waits(workspace):
        return badge(_("Waiting"), "hourglass", "wait")
    return state_badge(workspace.state)


@register.simple_tag
def start_estimate(workspace: Workspace) -> presenters.ExpectedStart:
    """Return when a queued workspace is expected to start."""
    return presenters.expected_start(workspace)


@register.inclusion_tag("workspaces/efficiency.html")
def efficiency(workspace: Workspace) -> dict[str, Any]:
    """Render the share of GPU time used, with a hint. Renders nothing if too little was measured."""
    result = efficiency_of(workspace)
    if result is None or result.used is None:
        return {"found": None}
    return {
        "found": result,
        "used": format_share(result.used),
        "measured": format_share(result.measured),
        "hint": message_of(result.hint) if result.hint is not None else "",
        "advice": next_action_of(result.hint) if result.hint is not None else "",
    }


@register.inclusion_tag("workspaces/gpu_act.html", takes_context=True)
def gpu_act(context: dict[str, Any], workspace: Workspace) -> dict[str, Any]:
    """Render the actions to release, attach and resize GPUs, for users who may use them."""
    user: User = context["request"].user
    may = may_operate(user, workspace) and workspace.state in CHANGEABLE
    attach = may and workspace.gpu_released
    return {
        "workspace": workspace,
        "attach": attach,
        "resize": may,
        "release": may and not attach and workspace.accelerated and workspace.state != State.FAILED,
    }
