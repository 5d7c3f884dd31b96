"""What agents report. Their bearer token names the workspace and its generation by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from portal.common.problems import plain_response
from portal.common.texts import strip_nul_json
from portal.workspaces import results
from portal.workspaces.gateway.routes import is_endpoint
from portal.workspaces.secrets import check_agent_token

MAX_BODY = 256 * 1024
Report = Callable[[UUID, int, dict[str, Any]], HttpResponse]


def reported(handle: Report) -> Callable[[HttpRequest], HttpResponse]:
    """Check the token and the body, then call `handle`; 410 tells the agent that its time is over."""

    @login_not_required
    @csrf_exempt
    @require_POST
    def view(request: HttpRequest) -> HttpResponse:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        known = check_agent_token(token.strip()) if kind.lower() == "bearer" else None
        if known is None:
            return plain_response(401, "bad_agent_token", "This is not an agent's token.", request)
        try:
            if int(request.headers.get("Content-Length") or 0) > MAX_BODY:
                raise ValueError("too large")
            body = strip_nul_json(json.loads(request.body or b"{}", parse_constant=_no_constant))
            if not isinstance(body, dict):
                raise TypeError("not an object")
            return handle(*known, body)
        except results.Revoked:
            return plain_response(410, "revoked", "This start of the workspace is over.", request)
        except RecursionError:
            return plain_response(400, "invalid", "The report is nested too deeply.", request)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            return plain_response(400, "invalid", f"The report is not valid: {error}.", request)

    return view


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _endpoint(body: dict[str, Any]) -> str:
    endpoint = body.get("endpoint", "")
    if not isinstance(endpoint, str) or len(endpoint) > 200 or (endpoint and not is_endpoint(endpoint)):
        raise ValueError("endpoint is not an http URL of a host and port")
    return endpoint


@reported
def launched(workspace_id: UUID, generation: int, body: dict[str, Any]) -> HttpResponse:
    results.agent_launched(workspace_id=workspace_id, generation=generation, endpoint=_endpoint(body))
    return HttpResponse(status=204)


@reported
def ready(workspace_id: UUID, generation: int, body: dict[str, Any]) -> HttpResponse:
    results.agent_ready(workspace_id=workspace_id, generation=generation, endpoint=_endpoint(body))
    return HttpResponse(status=204)


@reported
def heartbeat(workspace_id: UUID, generation: int, body: dict[str, Any]) -> HttpResponse:
    activity = body.get("activity") or {}
    if not isinstance(activity, dict):
        raise TypeError("activity is not an object")
    results.agent_heartbeat(workspace_id=workspace_id, generation=generation, activity=activity)
    return JsonResponse({"next_s": settings.HEARTBEAT_S})


@reported
def exited(workspace_id: UUID, generation: int, body: dict[str, Any]) -> HttpResponse:
    results.agent_exited(
        workspace_id=workspace_id,
        generation=generation,
        exit_code=int(body.get("exit_code") or 0),
        log_tail=str(body.get("log_tail") or "")[-20_000:],
    )
    return HttpResponse(status=204)


app_name = "agent"
urlpatterns = [
    path("launched", launched, name="launched"),
    path("ready", ready, name="ready"),
    path("heartbeat", heartbeat, name="heartbeat"),
    path("exited", exited, name="exited"),
]
