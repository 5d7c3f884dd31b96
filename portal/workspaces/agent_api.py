"""API for agents. Their bearer token contains the workspace and its generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from portal.common.errors import StateConflict, Unavailable
from portal.common.problems import plain_response
from portal.fleet.machines import selectors
from portal.workspaces import checkout_reports, reports, results, secret_delivery
from portal.workspaces.tokens import check_agent_token

MAX_BODY = 256 * 1024
Report = Callable[[HttpRequest, UUID, int, dict[str, Any]], HttpResponse]


def report_view(handle: Report) -> Callable[[HttpRequest], HttpResponse]:
    """Wrap `handle` to check the token and the body first. Status 410: the agent's start has ended."""

    @login_not_required
    @csrf_exempt
    @require_POST
    def view(request: HttpRequest) -> HttpResponse:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        identity = check_agent_token(token.strip()) if kind.lower() == "bearer" else None
        if identity is None or selectors.is_from_revoked_machine(request):
            return plain_response(401, "bad_agent_token", "This is not an agent's token.", request)
        try:
            return handle(request, *identity, reports.parse_report(_read(request)))
        except results.Revoked:
            return plain_response(410, "revoked", "This start of the workspace is over.", request)
        except RequestDataTooBig:
            return plain_response(413, "too_large", "The report is too large.", request)
        except reports.BadReport as error:
            return plain_response(400, "invalid", f"The report is not valid: {error}.", request)

    return view


def _read(request: HttpRequest) -> bytes:
    if len(request.body) > MAX_BODY:
        raise RequestDataTooBig
    return request.body


@report_view
def report_launched(
    _request: HttpRequest, workspace_id: UUID, generation: int, body: dict[str, Any]
) -> HttpResponse:
    results.agent_launched(
        workspace_id=workspace_id, generation=generation, endpoint=reports.endpoint_of(body)
    )
    secret_delivery.close(workspace_id, generation)
    return HttpResponse(status=204)


@report_view
def ready(_request: HttpRequest, workspace_id: UUID, generation: int, body: dict[str, Any]) -> HttpResponse:
    results.agent_ready(workspace_id=workspace_id, generation=generation, endpoint=reports.endpoint_of(body))
    return HttpResponse(status=204)


@report_view
def heartbeat(
    _request: HttpRequest, workspace_id: UUID, generation: int, body: dict[str, Any]
) -> HttpResponse:
    activity = reports.activity_of(body, workspace_id=workspace_id)
    results.agent_heartbeat(workspace_id=workspace_id, generation=generation, activity=activity)
    return JsonResponse({"next_s": settings.HEARTBEAT_S})


@report_view
def report_exited(
    _request: HttpRequest, workspace_id: UUID, generation: int, body: dict[str, Any]
) -> HttpResponse:
    exit_code, log_tail = reports.parse_exit(body)
    results.agent_exited(
        workspace_id=workspace_id, generation=generation, exit_code=exit_code, log_tail=log_tail
    )
    return HttpResponse(status=204)


@report_view
def secrets(request: HttpRequest, workspace_id: UUID, generation: int, _body: dict[str, Any]) -> HttpResponse:
    node = selectors.requesting_node(request) or ""
    try:
        payload = secret_delivery.deliver_secrets(workspace_id=workspace_id, generation=generation, node=node)
    except (StateConflict, Unavailable) as error:
        # 409 ends the start; 503 makes the agent retry for a while.
        return plain_response(error.status, error.reason.code.value, error.message, request)
    return JsonResponse(payload, headers={"Cache-Control": "no-store"})


@report_view
def checkout(
    _request: HttpRequest, workspace_id: UUID, generation: int, body: dict[str, Any]
) -> HttpResponse:
    checkout_reports.report(
        workspace_id=workspace_id, generation=generation, checkout=reports.checkout_of(body)
    )
    return HttpResponse(status=204)


app_name = "agent"
urlpatterns = [
    path("launched", report_launched, name="launched"),
    path("ready", ready, name="ready"),
    path("heartbeat", heartbeat, name="heartbeat"),
    path("exited", report_exited, name="exited"),
    path("secrets", secrets, name="secrets"),
    path("checkout", checkout, name="checkout"),
]
