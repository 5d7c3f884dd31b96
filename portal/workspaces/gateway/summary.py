"""The summary of a workspace for its own notebook: `/.berth/workspace` on the workspace's host.

JupyterLab's extension reads it (`provisioning/agent/jupyter`). Everyone who may enter the workspace and every
page of its app can read the summary, so it contains no data about other people.
"""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from portal.fleet.announcements.models import AnnouncementKind
from portal.fleet.announcements.selectors import banners_for
from portal.workspaces import memory_kills
from portal.workspaces.gateway.hosts import workspace_uuid
from portal.workspaces.homes import limits as home_limits
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.presenters import preempted_for
from portal.workspaces.problems import problem_sentence


def summary_of(external_name: str) -> dict[str, Any] | None:
    """Return state, usage and messages of the workspace, or `None` if it does not exist.

    `memory` is in MiB; figures missing in the last heartbeat are `None`. Each of the `messages` has a `tone`
    (`bad` or `wait`), a `text`, and `at`, the time that the text refers to (ISO 8601) or `None`.
    """
    workspace = (
        Workspace.objects.select_related("team", "owner", "status", "preemption")
        .filter(pk=workspace_uuid(external_name))
        .first()
    )
    if workspace is None:
        return None
    running = workspace.state == State.RUNNING
    seen = (workspace.status.activity or {}) if running else {}
    return {
        "name": workspace.name,
        "team": workspace.team.name,
        "state": workspace.state,
        "memory": {"used_mib": seen.get("rss_mib"), "limit_mib": workspace.resources["memory_mib"]},
        "gpus": [
            {key: gpu.get(key) for key in ("utilization_percent", "memory_used_mib", "memory_total_mib")}
            for gpu in seen.get("gpus") or ()
        ],
        "messages": messages_about(workspace) if running else [],
    }


def messages_about(workspace: Workspace) -> list[dict[str, str | None]]:
    """Return the messages for users of the workspace, most urgent first."""
    messages: list[dict[str, str | None]] = []

    def say(tone: str, text: str, at: str | None = None) -> None:
        messages.append({"tone": tone, "text": text, "at": at})

    cause, notice = preempted_for(workspace), workspace.preempting
    if cause and notice is not None:
        text = _("This workspace is being preempted for %(cause)s and stops. Save your work.")
        say("bad", text % {"cause": cause}, notice.preempt_at.isoformat())
    lost = memory_kills.last_report(workspace)
    if lost is not None and timezone.now() - lost.at < memory_kills.SHOWN_IN_APP_FOR:
        # The gateway has no scheduler, so it shows the size calculated when the program was killed.
        larger = (
            _("A larger size was free at that time: %(size)s.") % {"size": lost.larger} if lost.larger else ""
        )
        say("bad", " ".join(filter(None, (lost.message, larger))), lost.at.isoformat())
    home = home_limits.note_of(workspace)
    if home is not None and home.text:
        say("bad" if home.full else "wait", home.text)
    stale_s = (workspace.status.activity or {}).get("gpus_stale_s")
    if isinstance(stale_s, int):
        text = _("The GPU driver has not responded for %(count)d s. GPU work may hang.")
        say("bad", text % {"count": stale_s})
    if workspace.allocations.filter(released_at=None, devices__device__cordoned=True).exists():
        say("wait", _("A GPU of this workspace is cordoned and may need repair. Save often."))
    for banner in banners_for(workspace.owner):
        if banner.kind == AnnouncementKind.WARNING:
            say("wait", banner.text)
    if problem := problem_sentence(workspace):
        say("wait", problem)
    return messages
