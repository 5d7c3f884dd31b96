"""Origin of the current request, kept in a context variable for the audit log."""

from __future__ import annotations

import ipaddress
import re
import uuid
from contextvars import ContextVar
from dataclasses import dataclass, replace

from portal.common.texts import strip_nul

MAX_USER_AGENT = 200
_ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._-]{8,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a request. All fields are empty outside of requests.

    `address` is the client's IP address, `user_agent` is truncated to `MAX_USER_AGENT` characters, `token` is
    the prefix of the API token used.
    """

    address: str = ""
    user_agent: str = ""
    request_id: str = ""
    token: str = ""


_NOBODY = Origin()
_present: ContextVar[Origin] = ContextVar("berth_origin", default=_NOBODY)


def present() -> Origin:
    """Return the origin of the current request."""
    return _present.get()


def begin(*, address: str, user_agent: str, request_id: str) -> None:
    """Set the origin at the start of a request, replacing that of an earlier one in this thread."""
    _present.set(Origin(_address(address), strip_nul(user_agent)[:MAX_USER_AGENT], request_id))


def end() -> None:
    """Clear the origin at the end of a request."""
    _present.set(_NOBODY)


def note_token(prefix: str) -> None:
    """Record the prefix of the token that authenticated the request."""
    _present.set(replace(_present.get(), token=prefix))


def request_id(given: str) -> str:
    """Return the given request id if it is acceptable, else a new one."""
    return given if _ACCEPTABLE_ID.fullmatch(given) else uuid.uuid4().hex


def _address(text: str) -> str:
    try:
        # Without the zone id of link-local addresses, which databases do not accept.
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return ""
