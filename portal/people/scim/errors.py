"""SCIM errors (RFC 7644, section 3.12): status, optional `scimType`, and message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portal.common.errors import PortalError
from portal.common.reasons.reason import Reason
from portal.people.scim.codes import ScimCode


class ScimRefusal(PortalError):
    """Base of SCIM errors. `scim_type` is the RFC's keyword, or ""."""

    title = "Refused"

    def __init__(self, status: int, reason: Reason, scim_type: str = "") -> None:
        super().__init__(reason, code=reason.code)
        self.status = status
        self.scim_type = scim_type


def _refusal(status: int, scim_type: str = "") -> Callable[[Reason], ScimRefusal]:
    def make(reason: Reason) -> ScimRefusal:
        return ScimRefusal(status, reason, scim_type)

    return make


invalid_filter = _refusal(400, "invalidFilter")
invalid_path = _refusal(400, "invalidPath")
invalid_syntax = _refusal(400, "invalidSyntax")
no_target = _refusal(400, "noTarget")
mutability = _refusal(400, "mutability")
uniqueness = _refusal(409, "uniqueness")
conflict = _refusal(409)
not_found = _refusal(404)
changed_meanwhile = _refusal(412)
too_large = _refusal(413)
forbidden = _refusal(403)
not_implemented = _refusal(501)


def invalid_value(attribute: str) -> ScimRefusal:
    """Return an error for an invalid value of this attribute."""
    return ScimRefusal(400, Reason(ScimCode.VALUE_NOT_VALID, {"attribute": attribute[:100]}), "invalidValue")


def refused_value(reason: Reason) -> ScimRefusal:
    """Return an error for an invalid value, with its own reason."""
    return ScimRefusal(400, reason, "invalidValue")


def no_such_resource(_: Any = None) -> ScimRefusal:
    return not_found(Reason(ScimCode.NO_SUCH_RESOURCE))
