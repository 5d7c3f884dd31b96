"""SCIM PATCH (RFC 7644, section 3.5.2) on documents. Pure functions.

Documents have the keys of the schemas. Unsupported attributes are ignored, because Entra ID and Okta send all
they have. Accepts Entra ID's deviations: capitalized operations, paths as keys of an object, members to
remove in `value`, and filters that address e-mail addresses to be added.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portal.common.reasons.reason import Reason
from portal.people.scim import filters
from portal.people.scim.codes import ScimCode
from portal.people.scim.errors import (
    ScimRefusal,
    invalid_path,
    invalid_syntax,
    invalid_value,
    mutability,
    no_target,
)
from portal.people.scim.filters import And, Comparison, Node

MAX_OPERATIONS = 1000
MAX_PATH = 1000
READ_ONLY = {"id": "id", "meta": "meta", "groups": "groups"}
"""Attributes that only the portal sets."""
SUB_ATTRIBUTES = {
    name.lower(): name
    for name in ("givenName", "familyName", "formatted", "value", "type", "primary", "display", "$ref")
}
_PATH = re.compile(
    r"(?:(?P<urn>urn:[\w.:-]+):)?(?P<attribute>[A-Za-z$][\w$-]*)(?:\[(?P<filter>.+)\])?"
    r"(?:\.(?P<sub>[A-Za-z$][\w$-]*))?\Z",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ResourceAttributes:
    """Attributes of a resource by kind. `urn` identifies the schema."""

    urn: str
    simple: tuple[str, ...] = ()
    complex: tuple[str, ...] = ()
    multiple: tuple[str, ...] = ()

    def canonical_name(self, name: str) -> str:
        """Return the attribute name as spelled in the schema, or "" if it is not supported."""
        every = (*self.simple, *self.complex, *self.multiple)
        return next((attribute for attribute in every if attribute.lower() == name.lower()), "")


@dataclass(frozen=True, slots=True)
class _Path:
    attribute: str
    condition: Node | None
    sub: str


def apply_patch(document: Mapping[str, Any], operations: Any, shape: ResourceAttributes) -> dict[str, Any]:
    """Return a copy of the document with all operations applied in order. Raises `ScimRefusal`."""
    if not isinstance(operations, list) or not operations:
        raise invalid_syntax(Reason(ScimCode.OPERATION_NOT_VALID))
    if len(operations) > MAX_OPERATIONS:
        raise invalid_syntax(Reason(ScimCode.TOO_MANY, {"limit": MAX_OPERATIONS}))
    result = copy.deepcopy(dict(document))
    for operation in operations:
        if not isinstance(operation, Mapping):
            raise invalid_syntax(Reason(ScimCode.OPERATION_NOT_VALID))
        fields = {str(key).lower(): value for key, value in operation.items()}
        op = fields.get("op")
        op = op.lower() if isinstance(op, str) else ""
        if op not in ("add", "replace", "remove"):
            raise invalid_syntax(Reason(ScimCode.OPERATION_NOT_VALID))
        path = fields.get("path")
        if path is not None and not isinstance(path, str):
            raise _bad_path("")
        if path:
            _apply(result, op, path, fields.get("value"), shape)
        elif op == "remove":
            raise no_target(Reason(ScimCode.NO_TARGET, {"path": ""}))
        else:
            _apply_object(result, op, fields.get("value"), shape)
    return result


def _apply_object(document: dict[str, Any], op: str, value: Any, shape: ResourceAttributes) -> None:
    """Apply an operation without a path: each key is a path. Read-only attributes are ignored."""
    if not isinstance(value, Mapping):
        raise invalid_syntax(Reason(ScimCode.OPERATION_NOT_VALID))
    for key, item in value.items():
        if key.lower() not in READ_ONLY and key.lower() != "schemas":
            _apply(document, op, key, item, shape)


def _apply(document: dict[str, Any], op: str, path: str, value: Any, shape: ResourceAttributes) -> None:
    if value is None and op != "remove":
        # Null equals no value (RFC 7643, section 2.5).
        op = "remove"
    target = _read(path, shape)
    if target is None:
        return
    if target.attribute in shape.multiple:
        _apply_multiple(document, op, target, value, path)
    elif target.condition is not None:
        raise _bad_path(path)
    elif target.attribute in shape.complex:
        _apply_complex(document, op, target, value)
    elif target.sub:
        raise _bad_path(path)
    elif op == "remove":
        document.pop(target.attribute, None)
    else:
        document[target.attribute] = value


def _read(path: str, shape: ResourceAttributes) -> _Path | None:
    """Parse a path. Returns None for an unsupported attribute. Raises `ScimRefusal`."""
    match = _PATH.match(path) if len(path) <= MAX_PATH else None
    if match is None:
        raise _bad_path(path)
    if match["urn"] and match["urn"].lower() != shape.urn.lower():
        return None
    name = match["attribute"].lower()
    if name in READ_ONLY:
        raise mutability(Reason(ScimCode.READ_ONLY, {"attribute": READ_ONLY[name]}))
    attribute = shape.canonical_name(name)
    if not attribute:
        return None
    sub = match["sub"] or ""
    try:
        condition = filters.parse(match["filter"]) if match["filter"] else None
    except ScimRefusal as error:
        raise _bad_path(path) from error
    return _Path(attribute, condition, SUB_ATTRIBUTES.get(sub.lower(), sub))


def _apply_complex(document: dict[str, Any], op: str, target: _Path, value: Any) -> None:
    current = document.setdefault(target.attribute, {})
    if target.sub:
        if op == "remove":
            current.pop(target.sub, None)
        else:
            current[target.sub] = value
    elif op == "remove":
        current.clear()
    elif isinstance(value, Mapping):
        current.update(_canonical(value))
    else:
        raise invalid_value(target.attribute)


def _apply_multiple(document: dict[str, Any], op: str, target: _Path, value: Any, path: str) -> None:
    entries: list[dict[str, Any]] = document.setdefault(target.attribute, [])
    if target.condition is None and not target.sub:
        _apply_values(entries, op, target, value)
        return
    chosen = [
        entry for entry in entries if target.condition is None or filters.matches(target.condition, entry)
    ]
    if op == "remove":
        for entry in chosen:
            if target.sub:
                entry.pop(target.sub, None)
            else:
                entries.remove(entry)
        return
    if not chosen:
        new_entry = _value_of_filter(target.condition)
        if new_entry is None:
            raise no_target(Reason(ScimCode.NO_TARGET, {"path": path[:100]}))
        entries.append(new_entry)
        chosen = [new_entry]
    changes = {target.sub: value} if target.sub else value
    if not isinstance(changes, Mapping):
        raise invalid_value(target.attribute)
    for entry in chosen:
        entry.update(_canonical(changes))


def _apply_values(entries: list[dict[str, Any]], op: str, target: _Path, value: Any) -> None:
    """Change a whole multi-valued attribute.

    A remove with a value removes only that, as Entra ID sends it.
    """
    values = _values(target.attribute, value)
    keys = {_key(entry) for entry in values}
    if op == "remove":
        entries[:] = [entry for entry in entries if _key(entry) not in keys] if values else []
        return
    if op == "replace":
        entries.clear()
    by_key = {_key(entry): entry for entry in entries}
    if any(entry.get("primary") is True for entry in values):
        for entry in entries:
            entry["primary"] = False
    for entry in values:
        if _key(entry) in by_key:
            held_value = by_key[_key(entry)]["value"]
            by_key[_key(entry)].update({**entry, "value": held_value})
        else:
            entries.append(entry)
            by_key[_key(entry)] = entry


def _values(attribute: str, value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    if not all(
        isinstance(item, Mapping) and isinstance(_canonical(item).get("value"), str) for item in items
    ):
        raise invalid_value(attribute)
    return [_canonical(item) for item in items]


def _canonical(value: Mapping[str, Any]) -> dict[str, Any]:
    return {SUB_ATTRIBUTES.get(str(key).lower(), str(key)): item for key, item in value.items()}


def _key(value: Mapping[str, Any]) -> str:
    return str(value.get("value", "")).lower()


def _value_of_filter(condition: Node | None) -> dict[str, Any] | None:
    """Return the value described by a filter of equalities, or None for any other filter."""
    match condition:
        case None:
            return {}
        case Comparison(attribute, "eq", value) if value is not None:
            return {SUB_ATTRIBUTES.get(attribute, attribute): value}
        case And(left, right):
            one, other = _value_of_filter(left), _value_of_filter(right)
            return None if one is None or other is None else one | other
        case _:
            return None


def _bad_path(path: str) -> ScimRefusal:
    return invalid_path(Reason(ScimCode.PATH_NOT_VALID, {"path": path[:100]}))
