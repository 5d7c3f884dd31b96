"""What the pages of rooms below show of a workspace's end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.catalog.lifetimes import terms_of
from portal.catalog.models import Flavor
from portal.common.formatting import format_span
from portal.reclaim import mornings, presenters
from portal.workspaces.gpus import CHANGEABLE
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.policies import may_operate

register = template.Library()


@register.inclusion_tag("reclaim/life.html", takes_context=True)
def life(context: dict[str, Any], workspace: Workspace) -> dict[str, Any]:
    """How long it lives on, and the way to extend it."""
    user: User = context["request"].user
    found = presenters.life_of(workspace, user)
    return {"life": found, "workspace": workspace, "csrf_token": context.get("csrf_token")}


@register.inclusion_tag("reclaim/gpu_act.html", takes_context=True)
def gpu_act(context: dict[str, Any], workspace: Workspace) -> dict[str, Any]:
    """The way to release its GPUs, or to attach them again, for who may."""
    user: User = context["request"].user
    may = may_operate(user, workspace) and workspace.state in CHANGEABLE
    attach = may and workspace.gpu_released
    return {
        "workspace": workspace,
        "attach": attach,
        "release": may and not attach and workspace.accelerated and workspace.state != State.FAILED,
    }


@register.simple_tag
def next_start(workspace: Workspace) -> datetime | None:
    """When it is started again, where a schedule has stopped it."""
    return mornings.next_start_of(workspace)


@register.simple_tag
def lifetime_note(flavor: Flavor) -> str:
    """After what such a workspace stops where the field for hours is left empty, and how long it may live."""
    terms = terms_of(flavor)
    if terms.default_s is None:
        return _("At no set time, if you leave the hours empty.")
    default = format_span(terms.default_s)
    if terms.max_s is None:
        return _("After %(default)s, if you leave the hours empty. Files stay, and you can extend it.") % {
            "default": default
        }
    words = _(
        "After %(default)s, if you leave the hours empty. Files stay, and you can extend it to %(most)s."
    )
    return words % {"default": default, "most": format_span(terms.max_s)}
