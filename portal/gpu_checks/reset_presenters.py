"""Presenter of the page that confirms a reset: consequences, workspaces, and a reboot as the alternative."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.common import etags
from portal.common.reasons.wording import sentence_of
from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.models import Device
from portal.gpu_checks import resets
from portal.gpu_checks.kinds.reset import DEADLINE_S
from portal.people.accounts.models import User
from portal.workspaces.models import Workspace
from portal.workspaces.policies import visible_to

REBOOT = "sudo systemctl reboot"


@dataclass(frozen=True, slots=True)
class AffectedWorkspace:
    """A workspace that would be interrupted.

    `url` is set if the user may see it, `until` if it has an end.
    """

    name: str
    url: str
    until: datetime | None


def question(actor: User, device: Device, action: str) -> dict[str, Any]:
    """Return the context of `gpu_checks/reset.html`."""
    name, node = display_name(device), device.node.name
    refused = resets.refusal(device)
    return {
        "title": _("Reset %(name)s?") % {"name": name},
        "device": device,
        "loses": list(_consequences(device)),
        "stays": [
            _("its cordon, until it passes the check that follows"),
            _("work on other GPUs of %(node)s") % {"node": node},
        ],
        "refusals": [sentence_of(refused)] if refused is not None else [],
        "hidden": {etags.FORM_FIELD: etags.version_of(resets.displayed_state(device))},
        "action": action,
        "yes": _("Reset %(name)s") % {"name": name},
        "back": reverse("fleet:device", args=[device.pk]),
        "holders": _affected_rows(actor, resets.holders_of(device)),
        "reboot": REBOOT,
        "on_node": _affected_rows(actor, resets.workspaces_on(device.node)),
    }


def _consequences(device: Device) -> Iterable[str]:
    if device.node.pool.simulated:
        yield _("nothing; the GPU is simulated")
        return
    yield _("the contents of its memory")
    yield _("charts and NVML error detection of all GPUs of %(node)s, for up to %(seconds)d s") % {
        "seconds": DEADLINE_S,
        "node": device.node.name,
    }
    linked = ", ".join(f"GPU {sibling.index}" for sibling in resets.siblings(device))
    if linked:
        yield _("links to %(gpus)s; the driver refuses the reset if these must be reset too") % {
            "gpus": linked
        }


def _affected_rows(actor: User, workspaces: QuerySet[Workspace]) -> list[AffectedWorkspace]:
    """Return the workspaces. Only those visible to `actor` have names."""
    visible = set(visible_to(actor, Workspace.objects.live()).values_list("pk", flat=True))
    return [_affected_workspace(workspace, workspace.pk in visible) for workspace in workspaces]


def _affected_workspace(workspace: Workspace, visible: bool) -> AffectedWorkspace:
    if not visible:
        return AffectedWorkspace(_("another team"), "", workspace.runs_until)
    names = {"workspace": workspace.name, "owner": workspace.owner.username}
    url = reverse("workspaces:detail", args=[workspace.pk])
    return AffectedWorkspace(_("%(workspace)s of %(owner)s") % names, url, workspace.runs_until)
