"""An agent's reports about the repositories that its workspace clones, for pages and REST.

The reports of the current start are stored in `WorkspaceStatus.checkouts`, by kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.catalog.repositories.rules import folder_of, host_of
from portal.common.actors import SYSTEM
from portal.common.errors import NotFound
from portal.common.events import live
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of, reason_of
from portal.workspaces import egress
from portal.workspaces.checkouts import repositories_to_clone
from portal.workspaces.codes import GitCode
from portal.workspaces.lifecycle import HOLDING, State
from portal.workspaces.models import Workspace, WorkspaceStatus
from portal.workspaces.reports import CheckoutReport
from portal.workspaces.results import Revoked
from portal.workspaces.transitions import lock_workspace
from provisioning.types import CheckoutKind

ENDS = frozenset({"cloned", "kept", "installed", "failed"})
SHORT = 7
FAILURES = {
    "auth": GitCode.NOT_CLONED_AUTH,
    "certificate": GitCode.NOT_CLONED_CERTIFICATE,
    "disk_full": GitCode.NOT_CLONED_DISK_FULL,
    "egress": GitCode.NOT_CLONED_EGRESS,
    "failed": GitCode.NOT_CLONED,
    "host_key": GitCode.NOT_CLONED_HOST_KEY,
    "no_git": GitCode.NOT_CLONED_NO_GIT,
    "no_place": GitCode.NOT_CLONED_NO_PLACE,
    "no_ref": GitCode.NOT_CLONED_NO_REF,
    "no_secret": GitCode.NOT_CLONED_NO_SECRET,
    "not_found": GitCode.NOT_CLONED_NOT_FOUND,
    "script_failed": GitCode.SCRIPT_FAILED,
    "script_timed_out": GitCode.SCRIPT_TIMED_OUT,
    "timed_out": GitCode.NOT_CLONED_TIMED_OUT,
    "too_large": GitCode.NOT_CLONED_TOO_LARGE,
    "unreachable": GitCode.NOT_CLONED_UNREACHABLE,
    "wrong_secret": GitCode.NOT_CLONED_WRONG_SECRET,
}
"""Reasons for the agent's codes; each takes `url`, `ref`, `host` and `secret`."""


@transaction.atomic
def report(*, workspace_id: UUID, generation: int, checkout: CheckoutReport) -> None:
    """Store one step of a clone. Steps after the final one are ignored. Raises `Revoked`."""
    try:
        workspace = lock_workspace(workspace_id)
    except NotFound:
        raise Revoked from None
    if workspace.generation != generation or workspace.state not in HOLDING:
        raise Revoked
    status = WorkspaceStatus.objects.select_for_update().get(pk=workspace.pk)
    before: dict[str, Any] = status.checkouts.get(checkout.what, {})
    same_start = before.get("generation") == generation
    requested = next(
        (candidate for candidate in repositories_to_clone(workspace) if candidate.kind == checkout.what), None
    )
    if same_start and before.get("state") in ENDS:
        return
    if same_start:
        url, ref, secret = before["url"], before["ref"], before["secret"]
    elif requested is not None:
        url, ref, secret = requested.url, requested.ref, requested.secret
    else:
        return
    now = timezone.now().isoformat()
    entry = {
        "generation": generation,
        "url": url,
        "ref": ref,
        "secret": secret,
        "state": checkout.state,
        "began_at": before["began_at"] if same_start else now,
        "at": now,
        "commit": checkout.commit,
        "percent": checkout.percent,
        "note": checkout.note,
        "detail": checkout.detail,
        "reason": {},
    }
    if checkout.state == "failed":
        params = {"url": url, "ref": ref, "host": host_of(url), "secret": secret}
        if checkout.code == "egress":
            params |= egress.blocked_by(workspace, url, checkout.address)
        entry["reason"] = Reason(FAILURES.get(checkout.code, GitCode.NOT_CLONED), params).as_json()
    status.checkouts = {**status.checkouts, checkout.what: entry}
    status.save(update_fields=["checkouts"])
    if checkout.state not in ENDS:
        transaction.on_commit(partial(live.publish, workspace.pk, workspace.owner_id, "workspace.cloning"))
        return
    has_failed = checkout.state == "failed"
    events.record(
        actor=SYSTEM,
        kind=AuditKind.WORKSPACE_NOT_CLONED if has_failed else AuditKind.WORKSPACE_CLONED,
        workspace=workspace,
        message=_message(checkout, url),
        cause=entry["reason"] or None,
        data={"what": checkout.what, "url": url, "ref": ref, "commit": checkout.commit},
    )


def _message(checkout: CheckoutReport, url: str) -> str:
    at = f" at {checkout.commit[:SHORT]}" if checkout.commit else ""
    place = f"~/{folder_of(url)}" if checkout.what == CheckoutKind.REPOSITORY else "~/.dotfiles"
    match checkout.state:
        case "cloned":
            return f"cloned {url} into {place}{at}"
        case "kept":
            return f"kept {place} unchanged, because it already existed{at}"
        case "installed":
            detail = f", and ran {checkout.note}" if checkout.note else ", and linked its files"
            return f"cloned {url} into {place}{at}{detail}"
    return f"could not finish {url}" if checkout.code.startswith("script_") else f"could not clone {url}"


@dataclass(frozen=True, slots=True)
class CheckoutRow:
    """A repository of a workspace, for its page and REST.

    `state` is waiting, cloning, cloned, kept, installing, installed or failed. `message` and `next_action`
    explain a failure, `detail` is its output.
    """

    kind: str
    url: str
    ref: str
    folder: str
    state: str
    commit: str
    percent: int | None
    code: str
    message: str
    next_action: str
    detail: str
    text: str
    at: datetime | None

    @property
    def failed(self) -> bool:
        return self.state == "failed"

    @property
    def running(self) -> bool:
        return self.state in ("cloning", "installing")

    @property
    def label(self) -> str:
        """The display name of the kind."""
        return _("Dotfiles") if self.kind == CheckoutKind.DOTFILES else _("Git repository")


def rows_of(
    git: Mapping[str, Any], checkouts: Mapping[str, Any], *, ended: bool = False
) -> list[CheckoutRow]:
    """Return the repositories of `git` with their reports, starting with the one that the user requested."""
    rows = []
    for kind in CheckoutKind:
        entry = checkouts.get(kind.value) or {}
        repository = git if kind is CheckoutKind.REPOSITORY else {}
        if not entry and (not repository or ended):
            continue
        url, ref = entry.get("url") or repository["url"], entry.get("ref") or repository.get("ref", "")
        reason = reason_of(entry.get("reason") or {})
        state = entry.get("state", "waiting")
        folder = ".dotfiles" if kind is CheckoutKind.DOTFILES else folder_of(url)
        rows.append(
            CheckoutRow(
                kind=kind.value,
                url=url,
                ref=ref,
                folder=folder,
                state=state,
                commit=entry.get("commit", ""),
                percent=entry.get("percent"),
                code=reason.code.value if reason is not None else "",
                message=message_of(reason) if reason is not None else "",
                next_action=next_action_of(reason) if reason is not None else "",
                detail=entry.get("detail", ""),
                text=_progress_text(state, folder, entry),
                at=datetime.fromisoformat(entry["at"]) if entry else None,
            )
        )
    return rows


def _progress_text(state: str, folder: str, entry: Mapping[str, Any]) -> str:
    """Return the progress as text."""
    params = {
        "folder": f"~/{folder}",
        "commit": entry.get("commit", "")[:SHORT],
        "note": entry.get("note", ""),
    }
    match state:
        case "cloning":
            percent = entry.get("percent")
            return _("Cloning, %(percent)d %%") % {"percent": percent} if percent else _("Cloning")
        case "cloned":
            return (
                _("Cloned into %(folder)s at %(commit)s") % params if params["commit"] else _("Cloned, empty")
            )
        case "kept":
            return _("%(folder)s already existed and is unchanged") % params
        case "installing":
            return _("Installing")
        case "installed":
            return _("Installed by %(note)s") % params if params["note"] else _("Files linked")
        case "failed":
            return _("Failed")
    return _("Cloned after the start")


def note_of(workspace: Workspace) -> list[CheckoutRow]:
    """Return the repositories for the workspace's page."""
    ended = workspace.state in (State.TERMINATED, State.FAILED)
    return rows_of(workspace.git, workspace.status.checkouts, ended=ended)
