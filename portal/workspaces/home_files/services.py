"""The files of a home, for its owner only, whether workspaces run or not.

A home belongs to a user in a team, and is addressed by one of the workspaces that use it. Its node answers
requests (`provisioning/agent/files`). File contents bypass the portal: they go through the origin of that
workspace, each with a single-use ticket. Paths are in the wire form of `provisioning/agent/files/tree.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

import redis
from django.conf import settings
from django.urls import reverse

from portal.common.errors import InvalidInput, NotFound, PortalError, StateConflict, Unavailable
from portal.common.events import live
from portal.common.reasons.reason import Reason
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.models import Pool
from portal.fleet.machines import selectors as machines
from portal.fleet.machines.models import MachineState
from portal.people.accounts.models import User
from portal.workspaces import node_rpc, policies
from portal.workspaces.gateway import file_tickets
from portal.workspaces.home_files.codes import FileCode
from portal.workspaces.homes import limits as home_limits
from portal.workspaces.homes import places as home_places
from portal.workspaces.homes import use as home_use
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.endpoints import files_socket_name
from provisioning.file_messages import FilesQuestion

PAGE = 200
MAX_PATH = 4096
TIMEOUT_S = 12
DOWNLOAD_S = 120
UPLOAD_S = 3600
"""Lifetime of a ticket in seconds; for a form, the time to choose files."""
UNLIMITED = 1 << 50
FORMS = ("file", "zip", "tar")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder, link or other entry. `name` is for display, `path` identifies the entry in requests."""

    name: str
    path: str
    kind: str
    size_bytes: int
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a folder; `total` counts all entries of the folder."""

    path: str
    entries: tuple[Entry, ...]
    total: int
    offset: int


def listing(*, actor: User, workspace: Workspace, path: str = "", offset: int = 0) -> Listing:
    """Return a page of a folder: folders first, then by name. Raises the exceptions of `_ask`."""
    answer = _ask(actor, workspace, "list", path=path, offset=offset, limit=PAGE)
    rows = answer.get("entries")
    entries = [_entry(path, row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    total = answer.get("total")
    return Listing(path, tuple(entries), total if isinstance(total, int) else len(entries), offset)


def make_folder(*, actor: User, workspace: Workspace, path: str) -> None:
    """Create a folder. Raises the exceptions of `_ask`."""
    _ask(actor, workspace, "make_folder", path=path)


def rename(*, actor: User, workspace: Workspace, path: str, to: str) -> None:
    """Rename or move a file or folder. Never replaces an existing one. Raises the exceptions of `_ask`."""
    _ask(actor, workspace, "rename", path=path, to=_check_path(to))


def delete(*, actor: User, workspace: Workspace, paths: Sequence[str]) -> None:
    """Permanently delete files and folders with their contents. Raises the exceptions of `_ask`."""
    _ask(actor, workspace, "delete", paths=[_check_path(path) for path in paths])


def download_url(*, actor: User, workspace: Workspace, path: str, form: str = "file") -> str:
    """Return a single-use URL of a file, or of a folder as `zip` or `tar`.

    Raises the exceptions of `_ask`.
    """
    if form not in FORMS:
        raise InvalidInput(Reason(FileCode.NO_SUCH_FORM, {"known": list(FORMS)}))
    return _transfer(actor, workspace, DOWNLOAD_S, what=form, path=path)


def upload_form_url(*, actor: User, workspace: Workspace, path: str, replace: bool = False) -> str:
    """Return a single-use URL for a browser form; it redirects to the folder's page afterwards."""
    back = f"{settings.BERTH_PUBLIC_URL}{page_url(workspace, path)}"
    return _transfer(actor, workspace, UPLOAD_S, what="form", path=path, replace=replace, back=back)


def upload_url(*, actor: User, workspace: Workspace, path: str, replace: bool = False) -> str:
    """Return a single-use URL for a PUT of one file. Raises the exceptions of `_ask`."""
    folder, _, name = _check_path(path).rpartition("/")
    upload = {"name": name, "replace": replace, "back": "", "origin": page_origin()}
    return _transfer(actor, workspace, UPLOAD_S, what="put", path=folder, **upload)


def page_origin() -> str:
    """Return the origin of the portal's pages, whose scripts may send files to `upload_url`."""
    public = urlsplit(settings.BERTH_PUBLIC_URL)
    return f"{public.scheme}://{public.netloc}"


def page_url(workspace: Workspace, path: str = "") -> str:
    """Return the URL of a folder's page. The URL has a query string, so parameters can be appended."""
    return f"{reverse('home_files:list', args=[workspace.pk])}?path={quote(path, safe='')}"


def join_path(folder: str, name: str) -> str:
    """Return the path of a name in a folder, from user input."""
    wire = "".join(
        character
        if character.isprintable() and character not in "%/"
        else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in name.strip()
    )
    return f"{folder}/{wire}" if folder else wire


def name_of(path: str) -> str:
    """Return the last name of a path for display, with escapes for unprintable characters."""
    text = unquote_to_bytes(path.rpartition("/")[2]).decode("utf-8", "backslashreplace")
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _entry(folder: str, row: dict[str, Any]) -> Entry:
    wire = str(row.get("id", ""))
    size, changed = row.get("size"), row.get("changed")
    try:
        at = datetime.fromtimestamp(float(changed), UTC) if isinstance(changed, int | float) else None
    except (ValueError, OverflowError, OSError):
        at = None
    return Entry(
        name=name_of(wire),
        path=f"{folder}/{wire}" if folder else wire,
        kind=str(row.get("kind", "other")),
        size_bytes=size if isinstance(size, int) and size >= 0 else 0,
        changed_at=at,
    )


def _check_path(path: str) -> str:
    if len(path) > MAX_PATH or not path.isprintable():
        raise InvalidInput(Reason(FileCode.BAD_NAME, {"name": name_of(path[-80:])}))
    return path


def _transfer(actor: User, workspace: Workspace, lifetime_s: int, **order: Any) -> str:
    """Allow one transfer on the node and at the front door, and return its URL."""
    pool, node = _place(actor, workspace)
    machine = machines.machine_of_node(pool, node)
    if machine is not None and machine.state != MachineState.ACTIVE:
        # A machine that is no longer trusted gets no traffic.
        raise Unavailable(Reason(FileCode.NOT_READ, {"message": ""}))
    ticket = file_tickets.new()
    _ask(
        actor,
        workspace,
        "grant",
        digest=file_tickets.digest_of(ticket),
        lifetime_s=lifetime_s,
        most_bytes=_room_bytes(workspace, node),
        **order,
    )
    transfer = file_tickets.Transfer(
        workspace=workspace.external_name,
        socket=files_socket_name(workspace.team.slug, workspace.owner.username),
        gateway=machine.gateway if machine is not None else "",
        node=machine.name if machine is not None else "",
    )
    try:
        file_tickets.store_ticket(
            live.connection(), ticket, transfer, user_id=str(actor.pk), lifetime_s=lifetime_s
        )
    except redis.RedisError as error:
        raise Unavailable(Reason(FileCode.NOT_READ, {"message": ""})) from error
    return f"{workspace.origin}{file_tickets.PREFIX}{ticket}"


def _room_bytes(workspace: Workspace, node: str) -> int:
    """Return by how many bytes the home may grow, according to its last measurement."""
    room = home_limits.room_mib(workspace.owner_id, workspace.team_id, node)
    return UNLIMITED if room is None else room << 20


def _place(actor: User, workspace: Workspace) -> tuple[Pool, str]:
    policies.require_home(actor, workspace)
    home_use.require_not_in_transfer(workspace.owner_id, workspace.team_id)
    place = home_places.node_of(workspace)
    if place is None:
        raise StateConflict(Reason(FileCode.HOME_NOWHERE), code=FileCode.HOME_NOWHERE)
    home_use.require_not_archived(workspace.owner_id, workspace.team_id, *place)
    home_use.note_used(workspace.owner_id, workspace.team_id)
    return place


def _ask(actor: User, workspace: Workspace, do: str, **arguments: Any) -> dict[str, Any]:
    """Call the home's file server and return its answer.

    Raises `NotAllowed` (not the owner), `StateConflict` (no home, or a conflict with existing files),
    `NotFound`, `InvalidInput` (a path or name) and `Unavailable` (the node does not answer).
    """
    if "path" in arguments:
        _check_path(arguments["path"])
    pool, node = _place(actor, workspace)
    question = FilesQuestion(
        pool=node_commands.config_of(pool),
        team=workspace.team.slug,
        owner=workspace.owner.username,
        ask={"do": do, **arguments},
    )
    body = node_rpc.call(
        "node.files",
        {"question": messages.dump(question)},
        pool=pool,
        node=node,
        about="files",
        timeout_s=TIMEOUT_S,
    )
    refused = body.get("refused")
    if isinstance(refused, dict):
        raise refusal(str(refused.get("code")), str(refused.get("name", "")))
    if "error" in body:
        if body.get("code") == FileCode.HOME_NOWHERE:
            raise StateConflict(Reason(FileCode.HOME_NOWHERE), code=FileCode.HOME_NOWHERE)
        raise Unavailable(Reason(FileCode.NOT_READ, {"message": str(body["error"])[:500]}))
    answer = body.get("ok")
    return answer if isinstance(answer, dict) else {}


def refusals() -> dict[str, str]:
    """Return the error texts for uploads, by the file server's error code; `NAME` is a placeholder."""
    return {code: refusal(code, "NAME").sentence for code in _UPLOADS}


def refusal(code: str, name: str) -> PortalError:
    """Return the portal's exception for an error code of the file server."""
    reason = Reason(_CODES.get(code, FileCode.FAILED), {"name": name_of(name[:300])})
    if reason.code == FileCode.NOT_FOUND:
        return NotFound(reason)
    if reason.code in (FileCode.BAD_NAME, FileCode.RESERVED_NAME):
        return InvalidInput(reason)
    return StateConflict(reason, code=reason.code)


_UPLOADS = (
    "exists",
    "bad_name",
    "reserved_name",
    "not_allowed",
    "disk_full",
    "home_full",
    "not_found",
    "failed",
)
_CODES = {
    "not_found": FileCode.NOT_FOUND,
    "exists": FileCode.EXISTS,
    "is_a_link": FileCode.IS_A_LINK,
    "not_a_file": FileCode.NOT_A_FILE,
    "not_a_folder": FileCode.NOT_A_FOLDER,
    "bad_name": FileCode.BAD_NAME,
    "reserved_name": FileCode.RESERVED_NAME,
    "not_allowed": FileCode.NOT_WRITABLE,
    "disk_full": FileCode.DISK_FULL,
    "home_full": FileCode.HOME_FULL,
    "too_deep": FileCode.BAD_NAME,
    "busy": FileCode.BUSY,
}
