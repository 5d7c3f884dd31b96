"""Payloads for audit entries: type, time, ids and URLs for details. Fields are never removed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from portal.common.events.event_types import TYPE_OF_KIND
from portal.common.events.models import Event, TargetKind
from portal.common.htmx import public_url

DETAILS = ("from", "to", "reason", "code", "resource", "amount", "role", "run")
"""Keys of an entry's data that are sent: short values for programs."""
MAX_DETAIL = 200
ACCOUNTS = {"owner": "owner", "requester": "requester", "user": "username"}
"""Subjects that are accounts, with the key of the user name in the entry's data."""


def entry_payload(entry: Event) -> dict[str, Any]:
    """Return the payload of an entry. Raises `KeyError` if its kind has no event type."""
    return {
        "type": TYPE_OF_KIND[entry.kind].name,
        "timestamp": _stamp(entry.at),
        "data": {
            "entry": entry.pk,
            "action": entry.kind,
            "actor": entry.actor_label,
            **_subjects(entry),
            **_details(entry),
        },
    }


def test_payload(at: datetime, name: str) -> dict[str, Any]:
    """Return the payload of a test."""
    return {"type": "berth.test", "timestamp": _stamp(at), "data": {"webhook": name}}


def _subjects(entry: Event) -> dict[str, Any]:
    """Return the objects that the entry is about: their ids, with URLs for REST resources."""
    subjects: dict[str, Any] = {}
    if entry.workspace_id is not None:
        subjects["workspace"] = {
            "id": str(entry.workspace_id),
            "name": entry.workspace.name if entry.workspace else "",
            "url": _url("workspaces", entry.workspace_id),
        }
    if entry.team is not None:
        subjects["team"] = {"slug": entry.team.slug, "url": _url("teams", entry.team.slug)}
    if entry.pool is not None:
        subjects["pool"] = {"slug": entry.pool.slug, "url": _url("pools", entry.pool.slug)}
    keys: dict[str, list[str]] = {}
    for target in entry.targets.all():
        keys.setdefault(target.kind, []).append(target.key)
    if devices := keys.get(TargetKind.DEVICE):
        subjects["devices"] = [{"uuid": key} for key in devices]
    if nodes := keys.get(TargetKind.NODE):
        subjects["node"] = {"name": nodes[0]}
    if requests := keys.get(TargetKind.QUOTA_REQUEST):
        subjects["quota_request"] = {"id": requests[0], "url": _url("quota-requests", requests[0])}
    if entry.data.get("reservation"):
        key = str(entry.data["reservation"])
        subjects["reservation"] = {"id": key, "url": _url("reservations", key)}
    for subject, key in ACCOUNTS.items():
        if entry.data.get(key):
            subjects[subject] = {"username": str(entry.data[key])}
    return subjects


def _details(entry: Event) -> dict[str, Any]:
    details = {
        name: entry.data[name]
        for name in DETAILS
        if isinstance(entry.data.get(name), (str, int, bool)) and len(str(entry.data[name])) <= MAX_DETAIL
    }
    if entry.cause.get("code"):
        details.setdefault("code", entry.cause["code"])
    return details


def _url(collection: str, key: object) -> str:
    """Return the REST URL of a row.

    Does not use Django's URLs, because the gateway process, which also sends payloads, lacks these paths.
    """
    return f"{public_url()}/api/v1/{collection}/{quote(str(key), safe='')}"


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
