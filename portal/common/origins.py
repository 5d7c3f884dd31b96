"""Where the present request comes from: the audit log knows it without that it is passed on."""

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
    """Who asked, as far as a request tells. All are empty where no request is under way.

    `address` is an IP address, `user_agent` what the program calls itself, at most `MAX_USER_AGENT`
    characters, `token` the beginning of the API token that was used.
    """

    address: str = ""
    user_agent: str = ""
    request_id: str = ""
    token: str = ""


_NOBODY = Origin()
_present: ContextVar[Origin] = ContextVar("berth_origin", default=_NOBODY)


def present() -> Origin:
    """The origin of the request under way."""
    return _present.get()


def begin(*, address: str, user_agent: str, request_id: str) -> None:
    """A request begins; what was noted of an earlier one in this thread is forgotten."""
    _present.set(Origin(_address(address), strip_nul(user_agent)[:MAX_USER_AGENT], request_id))


def end() -> None:
    """The request has been answered: what this thread does next does not come from it."""
    _present.set(_NOBODY)


def note_token(prefix: str) -> None:
    """The request proved itself by the token that begins like this."""
    _present.set(replace(_present.get(), token=prefix))


def request_id(given: str) -> str:
    """The id that a request brings where it is one, else a new one."""
    return given if _ACCEPTABLE_ID.fullmatch(given) else uuid.uuid4().hex


def _address(text: str) -> str:
    try:
        # Without the zone of a link-local one, which no database takes.
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return ""
