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
from portal.people.scim.filters import Both, Compare, Node

MAX_OPERATIONS = 1000
MAX_PATH = 1000
READ_ONLY = {"id": "id", "meta": "meta", "groups": "groups"}
"""Attributes that only the portal sets."""
SUB_ATTRIBUTES = {
    each.lower(): each
    for each in ("givenName", "familyName", "formatted", "value", "type", "primary", "display", "$ref")
}
_PATH = re.compile(
    r"(?:(?P<urn>urn:[\w.:-]+):)?(?P<attribute>[A-Za-z$][\w$-]*)(?:\[(?P<filter>.+)\])?"
    r"(?:\.(?P<sub>[A-Za-z$][\w$-]*))?\Z",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Attributes of a resource by kind. `urn` identifies the schema."""

    urn: str
    simple: tuple[str, ...] = ()
    complex: tuple[str, ...] = ()
    multiple: tuple[str, ...] = ()

    def named(self, name: str) -> str:
        """Return the attribute name as spelled in the schema, or "" if it is not supported."""
        every = (*self.simple, *self.complex, *self.multiple)
        return next((each for each in every if each.lower() == name.lower()), "")


@dataclass(frozen=True, slots=True)
class _Path:
    attribute: str
    condition: Node | None
    sub: str


def patched(document: Mapping[str, Any], operations: Any, shape: Shape) -> dict[str, Any]:
    """Return a copy of the document with all operations applied in order. Raises `ScimRefusal`."""
    if not isinstance(operations, list) or not operations:
        raise invalid_syntax(Reason(ScimCode.OPERATION_NOT_VALID))
    if len(operations) > MAX_OPERATIONS:
        raise invalid_syntax(Reason(ScimCode.TOO_MANY, {"limit": MAX_OPERATIONS}))
    found = copy.deepcopy(dict(document))
    for each in operations:
        if not isinstance(each, Mapping):
            raise invalid_syntax(Reason(ScimCode.OPERATION_NOT_VALID))
        given = {str(key).lower(): value for key, value in each.items()}
        op = given.get("op")
        op = op.lower() if isinstance(op, str) else ""
        if op not in ("add", "replace", "remove"):
            raise invalid_syntax(Reason(ScimCode.OPERATION_NOT_VALID))
        path = given.get("path")
        if path is not None and not isinstance(path, str):
            raise _bad_path("")
        if path:
            _apply(found, op, path, given.get("value"), shape)
        elif op == "remove":
            raise no_target(Reason(ScimCode.NO_TARGET, {"path": ""}))
        else:
            _apply_object(found, op, given.get("value"), shape)
    return found


def _apply_object(document: dict[str, Any], op: str, value: Any, shape: Shape) -> None:
    """Apply an operation without a path: each key is a path. Read-only attributes are ignored."""
    if not isinstance(value, Mapping):
        raise invalid_syntax(Reason(ScimCode.OPERATION_NOT_VALID))
    for key, each in value.items():
        if key.lower() not in READ_ONLY and key.lower() != "schemas":
            _apply(document, op, key, each, shape)


def _apply(document: dict[str, Any], op: str, path: str, value: Any, shape: Shape) -> None:
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


def _read(path: str, shape: Shape) -> _Path | None:
    """Parse a path. Returns None for an unsupported attribute. Raises `ScimRefusal`."""
    found = _PATH.match(path) if len(path) <= MAX_PATH else None
    if found is None:
        raise _bad_path(path)
    if found["urn"] and found["urn"].lower() != shape.urn.lower():
        return None
    name = found["attribute"].lower()
    if name in READ_ONLY:
        raise mutability(Reason(ScimCode.READ_ONLY, {"attribute": READ_ONLY[name]}))
    attribute = shape.named(name)
    if not attribute:
        return None
    sub = found["sub"] or ""
    try:
        condition = filters.parse(found["filter"]) if found["filter"] else None
    except ScimRefusal as error:
        raise _bad_path(path) from error
    return _Path(attribute, condition, SUB_ATTRIBUTES.get(sub.lower(), sub))


def _apply_complex(document: dict[str, Any], op: str, target: _Path, value: Any) -> None:
    held = document.setdefault(target.attribute, {})
    if target.sub:
        if op == "remove":
            held.pop(target.sub, None)
        else:
            held[target.sub] = value
    elif op == "remove":
        held.clear()
    elif isinstance(value, Mapping):
        held.update(_canonical(value))
    else:
        raise invalid_value(target.attribute)


def _apply_multiple(document: dict[str, Any], op: str, target: _Path, value: Any, path: str) -> None:
    held: list[dict[str, Any]] = document.setdefault(target.attribute, [])
    if target.condition is None and not target.sub:
        _apply_values(held, op, target, value)
        return
    chosen = [each for each in held if target.condition is None or filters.matches(target.condition, each)]
    if op == "remove":
        for each in chosen:
            if target.sub:
                each.pop(target.sub, None)
            else:
                held.remove(each)
        return
    if not chosen:
        started = _started(target.condition)
        if started is None:
            raise no_target(Reason(ScimCode.NO_TARGET, {"path": path[:100]}))
        held.append(started)
        chosen = [started]
    given = {target.sub: value} if target.sub else value
    if not isinstance(given, Mapping):
        raise invalid_value(target.attribute)
    for each in chosen:
        each.update(_canonical(given))


def _apply_values(held: list[dict[str, Any]], op: str, target: _Path, value: Any) -> None:
    """Change a whole multi-valued attribute.

    A remove with a value removes only that, as Entra ID sends it.
    """
    given = _values(target.attribute, value)
    keys = {_key(each) for each in given}
    if op == "remove":
        held[:] = [each for each in held if _key(each) not in keys] if given else []
        return
    if op == "replace":
        held.clear()
    there = {_key(each): each for each in held}
    if any(each.get("primary") is True for each in given):
        for each in held:
            each["primary"] = False
    for each in given:
        if _key(each) in there:
            held_value = there[_key(each)]["value"]
            there[_key(each)].update({**each, "value": held_value})
        else:
            held.append(each)
            there[_key(each)] = each


def _values(attribute: str, value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    found = value if isinstance(value, list) else [value]
    if not all(
        isinstance(each, Mapping) and isinstance(_canonical(each).get("value"), str) for each in found
    ):
        raise invalid_value(attribute)
    return [_canonical(each) for each in found]


def _canonical(value: Mapping[str, Any]) -> dict[str, Any]:
    return {SUB_ATTRIBUTES.get(str(key).lower(), str(key)): each for key, each in value.items()}


def _key(value: Mapping[str, Any]) -> str:
    return str(value.get("value", "")).lower()


def _started(condition: Node | None) -> dict[str, Any] | None:
    """Return the value described by a filter of equalities, or None for any other filter."""
    match condition:
        case None:
            return {}
        case Compare(attribute, "eq", value) if value is not None:
            return {SUB_ATTRIBUTES.get(attribute, attribute): value}
        case Both(left, right):
            one, other = _started(left), _started(right)
            return None if one is None or other is None else one | other
        case _:
            return None


def _bad_path(path: str) -> ScimRefusal:
    return invalid_path(Reason(ScimCode.PATH_NOT_VALID, {"path": path[:100]}))
