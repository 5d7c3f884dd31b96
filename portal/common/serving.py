"""How the web processes serve: each request in one thread from its first middleware to its last byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _

from portal.common.problems import plain_response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

_LOOPBACK = frozenset({"127.0.0.1", "::1"})


class SyncHandler(WSGIHandler):
    """Django's handler behind the proxy.

    It refuses to hold a thread for an answer without an end. Event streams are asynchronous answers, and
    the proxy sends their requests to the process that is made for them (`portal.embedded.traefik`); one
    that arrives here past the proxy gets a 421 and ends at once.
    """

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> HttpResponseBase:
        environ["REMOTE_ADDR"] = client_address(
            environ.get("REMOTE_ADDR", ""), environ.get("HTTP_X_FORWARDED_FOR", "")
        )
        return super().__call__(environ, start_response)

    def get_response(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = super().get_response(request)
        if response.streaming and getattr(response, "is_async", False):
            # It has not begun, so it holds nothing.
            return plain_response(
                421,
                "misdirected",
                _("This process serves no event streams."),
                request,
                next_action=_("Ask the portal's public address."),
            )
        return response


def client_address(peer: str, forwarded_for: str) -> str:
    """Who asks: the peer, or whom proxies on this machine name in `X-Forwarded-For` as the last but them.

    A name that somebody from outside has put there is not believed, as Traefik drops it or adds the real one.
    """
    if peer not in _LOOPBACK:
        return peer
    named = [name for part in forwarded_for.split(",") if (name := part.strip())]
    for name in reversed(named):
        if name not in _LOOPBACK:
            return name
    return named[0] if named else peer
