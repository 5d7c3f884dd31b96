"""Client, id and token of the current request, kept in a context variable for the audit log."""

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
class RequestContext:
    """Client, id and token of a request. All fields are empty outside of requests.

    `address` is the client's IP address, `user_agent` is truncated to `MAX_USER_AGENT` characters, `token` is
    the prefix of the API token used.
    """

    address: str = ""
    user_agent: str = ""
    request_id: str = ""
    token: str = ""


_EMPTY = RequestContext()
_current: ContextVar[RequestContext] = ContextVar("berth_request_context", default=_EMPTY)


def current() -> RequestContext:
    """Return the context of the current request."""
    return _current.get()


def begin(*, address: str, user_agent: str, request_id: str) -> None:
    """Set the context at the start of a request.

    Replaces the context of an earlier request in this thread.
    """
    _current.set(RequestContext(_address(address), strip_nul(user_agent)[:MAX_USER_AGENT], request_id))


def end() -> None:
    """Clear the context at the end of a request."""
    _current.set(_EMPTY)


def note_token(prefix: str) -> None:
    """Record the prefix of the token that authenticated the request."""
    _current.set(replace(_current.get(), token=prefix))


def accepted_request_id(sent: str) -> str:
    """Return the client's request id if it is acceptable, else a new one."""
    return sent if _ACCEPTABLE_ID.fullmatch(sent) else uuid.uuid4().hex


def _address(text: str) -> str:
    try:
        # Without the zone id of link-local addresses, which databases do not accept.
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return ""
