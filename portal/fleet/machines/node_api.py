"""Endpoints for machines behind the nodes' door: authority, join, rotate, leave, workspaces."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.utils.translation import override
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from portal.common import rate_limits, request_context
from portal.common.errors import PortalError, TooMany
from portal.common.json_input import InvalidJson, parse_json
from portal.common.problems import plain_response, retry_after
from portal.common.rate_limits import MINUTE_S, Limit
from portal.common.reasons.reason import Reason
from portal.fleet.machines import door, joining, signs
from portal.fleet.machines.codes import MachineCode
from portal.people.accounts import limits

MAX_BODY = door.MAX_NODE_BODY
PER_ADDRESS = Limit(60, MINUTE_S)
MAX_FAILURES = 20
FAILURES_WINDOW = timedelta(minutes=15)
GUESSED_TOKEN_CODES = frozenset({MachineCode.JOIN_TOKEN_UNKNOWN, MachineCode.JOIN_TOKEN_USED})
T = TypeVar("T")
View = Callable[..., HttpResponse]


class BadBody(Exception):
    """The body is invalid. The message explains why."""


def require_door(view: View) -> View:
    """Admit only requests through the nodes' door, with a rate limit. Errors become problem documents."""

    @login_not_required
    @csrf_exempt
    def guarded(request: HttpRequest) -> HttpResponse:
        if not door.is_door_credential(
            request.headers.get(door.DOOR_HEADER, ""), settings.BERTH_GATEWAY_SECRET
        ):
            return plain_response(404, "not_found", "There is no such endpoint.", request)
        # For programs and for logs on other machines.
        with override("en"):
            return _call_view(view, request)

    return guarded


def _call_view(view: View, request: HttpRequest) -> HttpResponse:
    try:
        # Count requests by node, so that one node does not keep other machines behind the same address from
        # joining.
        wait_s = rate_limits.count(
            f"nodes:{request.headers.get(door.NODE_HEADER) or _network()}", PER_ADDRESS
        )
        if wait_s:
            raise TooMany(
                Reason(MachineCode.JOIN_TOO_OFTEN),
                retry_after_s=wait_s,
                code=MachineCode.JOIN_TOO_OFTEN,
            )
        return view(request)
    except (BadBody, InvalidJson) as error:
        return plain_response(400, "invalid", f"The request is not valid: {error}.", request)
    except RequestDataTooBig:
        return plain_response(413, "too_large", "The request is too large.", request)
    except PortalError as error:
        extra = {"next_action": error.next_action} if error.next_action else {}
        answer = plain_response(
            error.status, error.code, error.sentence, request, reason=error.reason.as_json(), **extra
        )
        for name, value in retry_after(error).items():
            answer[name] = value
        return answer


@require_safe
@require_door
def authority(_request: HttpRequest) -> HttpResponse:
    """Return the certificate of the authority, which a machine compares with its token."""
    return HttpResponse(joining.authority().pem, content_type="application/x-pem-file")


@require_POST
@require_door
def join(request: HttpRequest) -> HttpResponse:
    body = _body(request, joining.NodeJoinRequest)
    key = f"joins:{_network()}"
    if limits.current_count(key, window=FAILURES_WINDOW) >= MAX_FAILURES:
        raise TooMany(
            Reason(MachineCode.JOIN_TOO_OFTEN),
            retry_after_s=math.ceil(FAILURES_WINDOW.total_seconds()),
            code=MachineCode.JOIN_TOO_OFTEN,
        )
    try:
        joined = joining.join(request=body, address=request_context.current().address)
    except PortalError as error:
        if error.reason.code in GUESSED_TOKEN_CODES:
            limits.count(key, window=FAILURES_WINDOW)
        raise
    return JsonResponse(msgspec.to_builtins(joined), status=201)


@require_POST
@require_door
def rotate(request: HttpRequest) -> HttpResponse:
    body = _body(request, joining.Rotate)
    joined = _by_node(request, lambda node, serial: joining.rotate(node=node, serial=serial, request=body))
    return JsonResponse(msgspec.to_builtins(joined))


@require_POST
@require_door
def leave(request: HttpRequest) -> HttpResponse:
    body = _body(request, joining.NodeLeaveRequest)
    left = _by_node(request, lambda node, serial: joining.leave(node=node, serial=serial, request=body))
    return HttpResponse(status=204) if left is None else JsonResponse(msgspec.to_builtins(left), status=202)


@require_POST
@require_door
def node_workspaces(request: HttpRequest) -> HttpResponse:
    """Return the workspaces on the requesting node. Refused for other clients."""
    workspaces = _by_node(request, lambda node, serial: joining.node_workspaces(node=node, serial=serial))
    return JsonResponse(msgspec.to_builtins(workspaces))


def _by_node(request: HttpRequest, act: Callable[[str, str], T]) -> T:
    node = request.headers.get(door.NODE_HEADER, "")
    try:
        return act(node, request.headers.get(door.SERIAL_HEADER, ""))
    except PortalError as error:
        if error.reason.code is MachineCode.IDENTITY_REPLACED:
            signs.replaced_identity_shown(name=node)
        raise


def _body(request: HttpRequest, kind: type[T]) -> T:
    if len(request.body) > MAX_BODY:
        raise RequestDataTooBig
    document: Any = parse_json(request.body)
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if isinstance(document, dict) and (unknown := sorted(set(document) - names)):
        raise BadBody(f"unknown field {unknown[0][:60]!r}")
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise BadBody(str(error)[:300]) from error


def _network() -> str:
    return limits.network_of(request_context.current().address)


app_name = "nodes"
urlpatterns = [
    path("authority", authority, name="authority"),
    path("join", join, name="join"),
    path("rotate", rotate, name="rotate"),
    path("leave", leave, name="leave"),
    path("standing", node_workspaces, name="standing"),
]
