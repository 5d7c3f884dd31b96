"""Pages that release and attach a workspace's GPUs. They ask for confirmation, because the app restarts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common.errors import PortalError
from portal.common.formatting import format_duration
from portal.common.typed_requests import SignedInRequest
from portal.workspaces import gpus, policies, selectors
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.start_forecasts import start_forecasts
from portal.workspaces.views import redirect_to_workspace


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def release(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Confirm, then release the GPUs."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        policies.require_operate(request.user, workspace)
        if workspace.gpu_released or not workspace.accelerated:
            return redirect_to_workspace(workspace)
        return _ask(
            request,
            workspace,
            title=_("Release the GPUs of %(name)s?") % {"name": workspace.name},
            stays=[
                _("all files in the home folder"),
                _("the workspace, its software and its address; it runs without GPUs"),
                _("the option to attach GPUs again when they are free"),
            ],
            yes=_("Release GPU"),
        )
    try:
        gpus.release(actor=request.user, workspace_id=workspace_id)
    except PortalError as error:
        messages.error(request, error.sentence)
    return redirect_to_workspace(workspace)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def attach(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Show when the GPUs will be free and ask for confirmation, then attach them."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        policies.require_operate(request.user, workspace)
        if not workspace.gpu_released:
            return redirect_to_workspace(workspace)
        free, lines = gpu_start_forecast(workspace)
        return _ask(
            request,
            workspace,
            title=_("Attach the GPUs of %(name)s?") % {"name": workspace.name},
            loses=[] if free else lines,
            stays=[
                _("all files in the home folder"),
                *(lines if free else []),
                _("the option to release GPUs again while it waits"),
            ],
            yes=_("Attach GPU"),
        )
    try:
        gpus.attach(actor=request.user, workspace_id=workspace_id)
    except PortalError as error:
        messages.error(request, error.sentence)
    return redirect_to_workspace(workspace)


def gpu_start_forecast(workspace: Workspace) -> tuple[bool, list[str]]:
    """Return whether the workspace would start with its GPUs at once, and the forecast as sentences."""
    forecast = start_forecasts().attached(workspace)
    if forecast.starts_now:
        return True, [_("GPUs are free; the workspace starts with them at once")]
    if not forecast.possible:
        return False, [line for line in (forecast.message, forecast.next_action) if line]
    if forecast.eta_at is None:
        return False, [_("GPUs are in use; the workspace stops and waits in the queue")]
    wait_s = max(0.0, (forecast.eta_at - timezone.now()).total_seconds())
    text = _("GPUs are in use; the workspace stops and waits in the queue for about %(time)s")
    return False, [text % {"time": format_duration(wait_s)}]


def _ask(
    request: SignedInRequest, workspace: Workspace, *, loses: list[str] | None = None, **context: Any
) -> HttpResponse:
    ends = [_("nothing; the workspace is not running")]
    if workspace.state == State.RUNNING:
        ends = [
            _("the app, which restarts"),
            _("variables of kernels and programs in terminals"),
            _("files outside the home folder, such as /tmp"),
        ]
    back = reverse("workspaces:detail", args=[workspace.pk])
    return render(
        request,
        "confirm.html",
        {"action": request.path, "back": back, "loses": [*ends, *(loses or [])], **context},
    )
