"""SCIM documents of users and groups, and validation of documents from clients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.scim import account_names
from portal.people.scim.codes import ScimCode
from portal.people.scim.errors import invalid_value, refused_value
from portal.people.scim.filters import strip_schema
from portal.people.scim.models import ScimGroup, ScimUser
from portal.people.scim.patch import SUB_ATTRIBUTES, ResourceAttributes

USER = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP = "urn:ietf:params:scim:schemas:core:2.0:Group"
LIST = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
SEARCH = "urn:ietf:params:scim:api:messages:2.0:SearchRequest"
ERROR = "urn:ietf:params:scim:api:messages:2.0:Error"
USER_SHAPE = ResourceAttributes(
    USER, ("userName", "externalId", "displayName", "active"), ("name",), ("emails",)
)
GROUP_SHAPE = ResourceAttributes(GROUP, ("displayName", "externalId"), (), ("members",))
MAX_MEMBERS = 10_000
MAX_EMAIL_TYPE = 64
WORK = "work"
"""Type of an address that the provider sends without one."""


@dataclass(frozen=True, slots=True)
class UserValues:
    """Attributes of a user, as sent by the provider."""

    user_name: str
    external_id: str
    display_name: str
    first_name: str
    last_name: str
    email: str
    email_type: str
    email_primary: bool
    active: bool


@dataclass(frozen=True, slots=True)
class GroupValues:
    """Attributes of a group, as sent by the provider. Members are ids of accounts."""

    display_name: str
    external_id: str
    members: frozenset[UUID]


def address(kind: str, key: object) -> str:
    """Return the external URL of a resource."""
    return f"{settings.BERTH_PUBLIC_URL}/scim/v2/{kind}/{key}"


def user_document(row: ScimUser) -> dict[str, Any]:
    """Return the writable attributes of a user."""
    user = row.user
    document: dict[str, Any] = {"userName": row.user_name, "active": user.is_active}
    if row.external_id:
        document["externalId"] = row.external_id
    if row.display_name:
        document["displayName"] = row.display_name
    name = {"givenName": user.first_name, "familyName": user.last_name}
    document["name"] = {key: value for key, value in name.items() if value}
    email = {"value": user.email, "type": row.email_type, "primary": row.email_primary}
    document["emails"] = [email] if user.email else []
    return document


def user_resource(row: ScimUser) -> dict[str, Any]:
    """Return the SCIM representation of a user. The row's `user` and `groups` are prefetched."""
    document = user_document(row)
    version = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
    groups = [
        {"value": str(group.pk), "display": group.display_name, "$ref": address("Groups", group.pk)}
        for group in row.groups.all()
    ]
    document = {**document, "groups": groups}
    return _resource(USER, "User", row.pk, row, version, _without_empty(document, "name", "emails", "groups"))


def group_document(row: ScimGroup, members: Iterable[UUID]) -> dict[str, Any]:
    """Return the writable attributes of a group."""
    document: dict[str, Any] = {"displayName": row.display_name}
    if row.external_id:
        document["externalId"] = row.external_id
    document["members"] = [{"value": str(key)} for key in members]
    return document


def group_resource(row: ScimGroup, *, members: bool = True) -> dict[str, Any]:
    """Return the SCIM representation of a group. With `members`, these are prefetched."""
    document = group_document(row, [])
    del document["members"]
    if members:
        document["members"] = [
            {
                "value": str(member.pk),
                "type": "User",
                "$ref": address("Users", member.pk),
            }
            for member in row.members.all()
        ]
    return _resource(GROUP, "Group", row.pk, row, str(row.version), _without_empty(document, "members"))


def _without_empty(document: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the document without the attributes in `names` that are empty (RFC 7643, section 2.5)."""
    return {key: value for key, value in document.items() if value or key not in names}


def _resource(
    schema: str, kind: str, key: object, row: ScimUser | ScimGroup, version: str, document: dict[str, Any]
) -> dict[str, Any]:
    meta = {
        "resourceType": kind,
        "created": row.created_at.isoformat().replace("+00:00", "Z"),
        "lastModified": row.changed_at.isoformat().replace("+00:00", "Z"),
        "location": address(f"{kind}s", key),
        "version": f'W/"{version}"',
    }
    return {"schemas": [schema], "id": str(key), **document, "meta": meta}


def select_attributes(
    document: Mapping[str, Any], included: frozenset[str], excluded: frozenset[str]
) -> dict[str, Any]:
    """Return the requested attributes, or all if none were requested, without the excluded ones.

    Always includes `schemas` and `id`.
    """
    result: dict[str, Any] = {}
    for key, value in document.items():
        name = key.lower()
        if key in ("schemas", "id"):
            result[key] = value
        elif included:
            subs = {path.partition(".")[2] for path in included if path.partition(".")[0] == name}
            if name in included:
                result[key] = value
            elif subs:
                result[key] = _keep_sub_attributes(value, lambda sub, subs=subs: sub.lower() in subs)
        elif name not in excluded:
            subs = {path.partition(".")[2] for path in excluded if path.partition(".")[0] == name}
            result[key] = (
                _keep_sub_attributes(value, lambda sub, subs=subs: sub.lower() not in subs) if subs else value
            )
    return result


def _keep_sub_attributes(value: Any, keep: Any) -> Any:
    if isinstance(value, list):
        return [_keep_sub_attributes(item, keep) for item in value]
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if keep(key)}
    return value


def names_of(parameter: str) -> frozenset[str]:
    """Parse attribute names from a query parameter, in lower case and without schemas."""
    return frozenset(strip_schema(part.strip()) for part in parameter.split(",") if part.strip())


def user_values(document: Mapping[str, Any]) -> UserValues:
    """Validate a user document. Raises `ScimRefusal` (invalidValue)."""
    fields = _supported_attributes(document, USER_SHAPE)
    name = fields.get("name") or {}
    if not isinstance(name, Mapping):
        raise invalid_value("name")
    name = {SUB_ATTRIBUTES.get(str(key).lower(), str(key)): value for key, value in name.items()}
    email = _email(fields.get("emails"))
    return UserValues(
        user_name=_user_name(fields.get("userName")),
        external_id=_text(fields.get("externalId"), "externalId", 255),
        display_name=_text(fields.get("displayName"), "displayName", 200),
        first_name=_text(name.get("givenName"), "name.givenName", 150),
        last_name=_text(name.get("familyName"), "name.familyName", 150),
        email=_address(email.get("value")),
        email_type=_text(email.get("type"), "emails.type", MAX_EMAIL_TYPE) or WORK,
        email_primary=_boolean(email.get("primary"), "emails.primary"),
        active=_boolean(fields.get("active"), "active"),
    )


def group_values(document: Mapping[str, Any]) -> GroupValues:
    """Validate a group document. Raises `ScimRefusal` (invalidValue)."""
    fields = _supported_attributes(document, GROUP_SHAPE)
    name = _text(fields.get("displayName"), "displayName", 255)
    if not name:
        raise refused_value(Reason(ScimCode.ATTRIBUTE_MISSING, {"attribute": "displayName"}))
    entries = fields.get("members") or []
    if not isinstance(entries, list):
        raise invalid_value("members")
    if len(entries) > MAX_MEMBERS:
        raise refused_value(Reason(ScimCode.TOO_MANY, {"limit": MAX_MEMBERS}))
    members = set()
    for entry in entries:
        value = entry.get("value") if isinstance(entry, Mapping) else None
        try:
            members.add(UUID(value))
        except (TypeError, ValueError, AttributeError):
            raise refused_value(Reason(ScimCode.NO_SUCH_MEMBER, {"id": str(value)[:60]})) from None
    return GroupValues(name, _text(fields.get("externalId"), "externalId", 255), frozenset(members))


def _supported_attributes(document: Mapping[str, Any], shape: ResourceAttributes) -> dict[str, Any]:
    """Return the supported attributes of a document, spelled as in the schema."""
    return {name: value for key, value in document.items() if (name := shape.canonical_name(str(key)))}


def _text(value: Any, attribute: str, limit: int) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise invalid_value(attribute)
    text = strip_nul(value).strip()
    if len(text) > limit:
        raise invalid_value(attribute)
    return text


def _user_name(value: Any) -> str:
    name = _text(value, "userName", 1000)
    if not name:
        raise refused_value(Reason(ScimCode.ATTRIBUTE_MISSING, {"attribute": "userName"}))
    try:
        return account_names.normalized(name)
    except ValidationError:
        raise refused_value(Reason(ScimCode.USERNAME_NOT_VALID, {"name": name[:100]})) from None


def _email(value: Any) -> Mapping[str, Any]:
    """Return one entry: the primary one, else the one for work, else the first; empty without an address."""
    if value is None:
        return {}
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise invalid_value("emails")
    emails = [
        {SUB_ATTRIBUTES.get(str(key).lower(), key): item for key, item in entry.items()} for entry in value
    ]

    def rank(entry: Mapping[str, Any]) -> int:
        if entry.get("primary") in (True, "true", "True"):
            return 0
        return 1 if str(entry.get("type")).lower() == WORK else 2

    return min((entry for entry in emails if entry.get("value")), key=rank, default={})


def _address(value: Any) -> str:
    address = _text(value, "emails.value", 254)
    try:
        if address:
            validate_email(address)
    except ValidationError:
        raise invalid_value("emails.value") from None
    return address


def _boolean(value: Any, attribute: str) -> bool:
    """Return the boolean value, True by default. Entra ID sends it as text, such as “False”."""
    if value is None:
        return True
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise invalid_value(attribute)
    return value
