"""Messages to the owners of workspaces, from people who operate them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from portal.common import rate_limits
from portal.common.errors import InvalidInput, PortalError, StateConflict, TooMany
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.services import Note
from portal.common.idempotency import KeyUse, digest_of
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import User
from portal.workspaces import bulk, policies
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

MAX_TEXT = 1000
"""Maximum length of a message in characters."""
PER_HOUR = rate_limits.Limit(60, rate_limits.HOUR_S)
ENDPOINT = "workspaces.message"
MAX_NAMES = 20
"""Maximum number of workspaces named in a message."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Results by workspace id: the error, or `None` if the owner got the message.

    `replayed`: an earlier request with the same idempotency key had sent it.
    """

    results: Mapping[UUID, PortalError | None]
    replayed: bool = False


def require_reachable(actor: User, workspace: Workspace) -> None:
    """Raise `NotAllowed`, `NotFound` or `StateConflict` if the actor cannot write to the owner."""
    policies.require_operate(actor, workspace)
    if workspace.state == State.TERMINATED:
        raise bulk.not_found()
    owner = {"username": workspace.owner.username}
    if workspace.owner.is_service:
        raise StateConflict(Reason(WorkspaceCode.OWNER_READS_NOTHING, owner))
    if not workspace.owner.is_active:
        raise StateConflict(Reason(AccountCode.USER_DEACTIVATED, owner))


def send(*, actor: User, workspaces: Iterable[UUID], text: str, idempotency_key: str = "") -> Sent:
    """Send each owner of these workspaces one notification, which names their workspaces.

    Each workspace gets an entry in the audit log. Raises `InvalidInput` for an empty or long text, `TooMany`,
    and `StateConflict` if the idempotency key was used with another request.
    """
    keys = list(dict.fromkeys(workspaces))
    text = strip_nul(text).strip()
    _require_text(text)
    rows = bulk.visible(actor, keys)
    results = {key: _refusal(actor, rows.get(key)) for key in keys}
    reached = [rows[key] for key, error in results.items() if error is None]
    digest = digest_of([str(key) for key in keys], text)
    use = KeyUse(actor, ENDPOINT, idempotency_key, digest) if idempotency_key else None
    try:
        with transaction.atomic():
            if use is not None:
                if use.answer() is not None:
                    return Sent(results, replayed=True)
                use.claim()
                use.record()
            _deliver(actor, reached, text)
    except IntegrityError as error:
        if use is None or not use.was_claimed(error) or use.answer() is None:
            raise
        return Sent(results, replayed=True)
    return Sent(results)


def _deliver(actor: User, reached: list[Workspace], text: str) -> None:
    """Write the notifications and audit log entries."""
    if not reached:
        return
    _count(actor)
    by_owner: dict[User, list[Workspace]] = defaultdict(list)
    for row in reached:
        by_owner[row.owner].append(row)
    events.notify_each(
        kind="workspace.message",
        notes=[_note(actor, owner, owned, text) for owner, owned in by_owner.items()],
    )
    events.record_all(
        actor=actor,
        kind=AuditKind.WORKSPACE_MESSAGE_SENT,
        entries=[(row, "sent its owner a message") for row in reached],
        reason=text,
    )


def _require_text(text: str) -> None:
    if not text:
        reason = Reason(WorkspaceCode.MESSAGE_EMPTY)
    elif len(text) > MAX_TEXT:
        reason = Reason(WorkspaceCode.MESSAGE_TOO_LONG, {"maximum": MAX_TEXT, "length": len(text)})
    else:
        return
    raise InvalidInput(reason, errors={"text": [reason]})


def _refusal(actor: User, workspace: Workspace | None) -> PortalError | None:
    if workspace is None:
        return bulk.not_found()
    try:
        require_reachable(actor, workspace)
    except PortalError as error:
        return error
    return None


def _count(actor: User) -> None:
    """Raise `TooMany` if the user has sent too many messages within an hour."""
    wait_s = rate_limits.count(f"messages:{actor.pk}", PER_HOUR)
    if wait_s:
        raise TooMany(Reason(WorkspaceCode.TOO_MANY_MESSAGES, {"seconds": wait_s}), retry_after_s=wait_s)


def _note(actor: User, owner: User, owned: list[Workspace], text: str) -> Note:
    names = [row.name for row in owned]
    if len(owned) == 1:
        title = _("Message from %(sender)s about %(name)s") % {"sender": actor.username, "name": names[0]}
        return Note(owner, title, text, f"/workspaces/{owned[0].pk}/")
    values = {"sender": actor.username, "count": len(owned)}
    title = _("Message from %(sender)s about %(count)d of your workspaces") % values
    listed = ", ".join(names[:MAX_NAMES]) + (" …" if len(names) > MAX_NAMES else "")
    body = _("%(text)s\n\nWorkspaces: %(names)s") % {"text": text, "names": listed}
    return Note(owner, title, body, f"/workspaces/?owner={owner.username}")
