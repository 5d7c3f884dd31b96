"""WSGI handler of the web processes: one thread runs each request from start to end."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponseBase
from django.utils.translation import gettext as _

from portal.common import front_door
from portal.common.problems import plain_response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

THROUGH_FRONT_DOOR = "berth.through_front_door"
INTERNAL_PREFIX = "/agent/"
"""Prefix of agent endpoints, which are not reachable through the front door."""
BUFFERED_BYTES = 4 << 20
"""The front door buffers bodies up to this size before it forwards them (`portal.embedded.proxy`)."""
CHUNK_BYTES = 1 << 16


def _meta(header: str) -> str:
    return "HTTP_" + header.upper().replace("-", "_")


class SyncHandler(WSGIHandler):
    """Django's WSGI handler behind the front door, which supplies the client address.

    Refuses endless responses, which would occupy a thread. Event streams are async responses; the proxy
    routes them to a dedicated process (`portal.embedded.proxy`). One that arrives here directly gets a 421.
    """

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> HttpResponseBase:
        token = environ.pop(_meta(front_door.TOKEN_HEADER), "")
        environ[THROUGH_FRONT_DOOR] = front_door.is_front_door(token, settings.BERTH_GATEWAY_SECRET)
        environ["REMOTE_ADDR"] = client_address(
            environ.get("REMOTE_ADDR", ""),
            token=token,
            forwarded_for=environ.get("HTTP_X_FORWARDED_FOR", ""),
            proxy_secret=environ.pop(_meta(front_door.PROXY_HEADER), ""),
        )
        if environ[THROUGH_FRONT_DOOR] and environ.get("HTTP_TRANSFER_ENCODING"):
            _set_content_length(environ)
        response: HttpResponseBase = super().__call__(environ, start_response)
        if environ[THROUGH_FRONT_DOOR]:
            _drain(environ)
        return response

    def get_response(self, request: HttpRequest) -> HttpResponseBase:
        if request.META.get(THROUGH_FRONT_DOOR) and request.path_info.startswith(INTERNAL_PREFIX):
            # Check the decoded path, because clients can encode it.
            return plain_response(404, "not_found", _("Page not found."), request)
        response: HttpResponseBase = super().get_response(request)
        if response.streaming and getattr(response, "is_async", False):
            # The stream has not started and holds no resources.
            return plain_response(
                421,
                "misdirected",
                _("This process does not serve event streams."),
                request,
                next_action=_("Use the public URL of the portal."),
            )
        return response


def _set_content_length(environ: dict[str, Any]) -> None:
    """Buffer a chunked body and set its length, because Django reads only `CONTENT_LENGTH` bytes.

    The front door buffers the body before forwarding it. Reads at most one byte more than the size limit.
    """
    body = environ["wsgi.input"].read((settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0) + 1)
    environ["wsgi.input"] = BytesIO(body)
    environ["CONTENT_LENGTH"] = str(len(body))


def _drain(environ: dict[str, Any]) -> None:
    """Read the rest of a body that the view refused without reading it.

    Otherwise, the server would reset the connection, and the front door would respond with 502. The front
    door has the whole body of this size, so reading it does not block.
    """
    length = environ.get("CONTENT_LENGTH") or ""
    if length.isdecimal() and int(length) <= BUFFERED_BYTES:
        while environ["wsgi.input"].read(CHUNK_BYTES):
            pass


def client_address(peer: str, *, token: str, forwarded_for: str, proxy_secret: str) -> str:
    """Return the client's address, like `front_door.client_address` with this portal's settings."""
    return front_door.client_address(
        peer,
        token=token,
        forwarded_for=forwarded_for,
        proxy_secret=proxy_secret,
        gateway_secret=settings.BERTH_GATEWAY_SECRET,
        trusted=settings.BERTH_TRUSTED_PROXIES,
        own_proxy_secret=settings.BERTH_PROXY_SECRET,
    )
