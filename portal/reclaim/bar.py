"""Data of the notebook's status bar, and its button to extend the workspace (`/.berth/…` on its own host).

Every page that the workspace serves can use the button, so one click adds little time, never beyond the
maximum lifetime, and only near the end.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.errors import PortalError, StateConflict
from portal.common.formatting import format_duration, format_time_left
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.reclaim import keeping, presenters
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.engine.ladder import KEEPABLE
from portal.workspaces import extending, policies
from portal.workspaces.gateway.hosts import workspace_uuid
from portal.workspaces.gateway.summary import summary_of
from portal.workspaces.models import Workspace

EXTENSION_WINDOW = timedelta(hours=24)
"""Time before the end in which the button works, so that a loop in a page cannot flood the audit log."""


def describe(external_name: str) -> dict[str, Any] | None:
    """Return `summary_of` with `ends`: the stop time (ISO 8601), its text, and the button.

    `ends` is None without an end. Its `extend` is the label of the button, or empty for no button.
    """
    summary = summary_of(external_name)
    if summary is None:
        return None
    workspace = _workspace(external_name)
    life = presenters.life_of(workspace, None) if workspace is not None else None
    if life is None or life.stops_at is None:
        return {**summary, "ends": None}
    near = life.stops_at - timezone.now() <= EXTENSION_WINDOW
    button = ""
    if life.idle:
        button = _("Keep for %(time)s") % {"time": life.kept_for}
    elif near and life.offered_s:
        button = _("Extend by %(time)s") % {"time": format_duration(life.offered_s)}
    if life.reason:
        text = _("%(why)s The workspace stops. Files are kept.")
        if life.releases:
            text = _("%(why)s The app restarts without GPUs. Kernels lose their variables; files are kept.")
        text %= {"why": life.reason}
        say = {"tone": "bad", "text": text, "at": life.stops_at.isoformat()}
        summary = {**summary, "messages": [say, *summary["messages"]]}
    ends = {
        "at": life.stops_at.isoformat(),
        "left": _("%(left)s left") % {"left": format_time_left(life.left_s)},
        "near": near,
        "extend": button,
    }
    return {**summary, "ends": ends}


def extend(external_name: str, user_id: str) -> tuple[int, dict[str, Any]]:
    """Extend the workspace as the signed-in user, by one step. Returns HTTP status and body.

    If the workspace is about to stop because it is idle, keeps it instead.
    """
    workspace = _workspace(external_name)
    user = User.objects.filter(pk=user_id, is_active=True).first()
    if workspace is None or user is None or not policies.may_open(user, workspace):
        return 404, {"code": "not_found", "message": _("Workspace not found.")}
    try:
        notice = presenters.notice_about(workspace)
        if notice is not None and notice.cause in KEEPABLE:
            keeping.keep_workspace(actor=user, workspace_id=workspace.pk)
            return 200, {"ends_at": None}
        ends_at = workspace.runs_until
        if ends_at is not None and ends_at - timezone.now() > EXTENSION_WINDOW:
            reason = Reason(
                LifetimeCode.NOT_NEAR_ITS_END,
                {"name": workspace.name, "near_s": EXTENSION_WINDOW.days * 86_400},
            )
            raise StateConflict(reason)
        seconds = extending.extension_step_s(workspace) or extending.OFFERED_S
        done = extending.extend(actor=user, workspace_id=workspace.pk, seconds=seconds)
    except PortalError as error:
        return error.status, {"code": error.reason.code.value, "message": error.sentence}
    ends_at = done.workspace.ends_at
    return 200, {"ends_at": ends_at.isoformat() if ends_at is not None else None}


def _workspace(external_name: str) -> Workspace | None:
    workspaces = Workspace.objects.select_related("flavor", "owner", "team", "template", "status")
    return workspaces.filter(pk=workspace_uuid(external_name)).first()
