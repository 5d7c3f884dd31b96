"""The page that resizes a workspace: flavors with start forecasts, and the effects of a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.http import HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.catalog import selectors as catalog
from portal.catalog.models import Flavor
from portal.common.errors import InvalidInput, PortalError, StateConflict
from portal.common.formatting import format_size
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.workspaces import gpus, policies, resizing, selectors
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.start_forecasts import StartForecast, start_forecasts
from portal.workspaces.views import redirect_to_workspace


@dataclass(frozen=True, slots=True)
class FlavorRow:
    """A flavor to choose, with its size as text and the forecast for the workspace."""

    flavor: Flavor
    size: str
    verdict: StartForecast
    chosen: bool

    @property
    def deprecated(self) -> str:
        """The recommended successor, if it is deprecated."""
        reason = catalog.deprecation_of(self.flavor)
        return sentence_of(reason) if reason is not None else ""


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def resize(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Show the flavors with forecasts, then resize the workspace."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    policies.require_operate(request.user, workspace)
    flavor_slug = strip_nul((request.POST if request.method == "POST" else request.GET).get("flavor", ""))
    error: PortalError | None = None
    if request.method == "POST":
        try:
            flavor = _flavor(request, flavor_slug)
            resizing.resize(actor=request.user, workspace_id=workspace_id, flavor=flavor)
            return redirect_to_workspace(workspace)
        except PortalError as refused:
            error = refused
            workspace = selectors.workspace_by_id(request.user, workspace_id)
    if workspace.state not in gpus.CHANGEABLE and error is None:
        error = StateConflict(Reason(WorkspaceCode.NOT_RESIZABLE_NOW, {"name": workspace.name}))
    rows = _rows(workspace, flavor_slug) if workspace.state in gpus.CHANGEABLE else []
    starts = workspace.state in (State.RUNNING, State.PENDING)
    context = {
        "workspace": workspace,
        "rows": rows,
        "size": format_size(workspace.resources),
        "ends": _consequences(workspace),
        "stays": _unchanged_lines(workspace),
        "starts": starts,
        "possible": not starts or any(row.verdict.possible for row in rows),
        "error": error,
    }
    return render(request, "workspaces/resize.html", context, status=error.status if error else 200)


def _flavor(request: SignedInRequest, slug: str) -> Flavor:
    if not slug:
        raise InvalidInput(Reason(CommonCode.FIRST_CHOICE_MISSING, {"field": "flavor"}))
    return catalog.flavor_by_slug(request.user, slug)


def _rows(workspace: Workspace, flavor_slug: str) -> list[FlavorRow]:
    """Return the other flavors that are available where the workspace's files are."""
    offered = [
        flavor
        for flavor in catalog.flavors_of(workspace.team)
        if flavor != workspace.flavor and resizing.keeps_files(workspace, flavor)
    ]
    return [
        FlavorRow(
            flavor,
            format_size(resizing.resized_request(workspace, flavor)[0])
            if workspace.gpu_released
            else format_size(flavor.as_request()),
            forecast,
            flavor.slug == flavor_slug,
        )
        for flavor, forecast in start_forecasts().resized(workspace, offered)
    ]


def _consequences(workspace: Workspace) -> Sequence[str]:
    if workspace.state == State.RUNNING:
        return [
            _("the app, which restarts"),
            _("variables of kernels and programs in terminals"),
            _("files outside the home folder, such as /tmp"),
            _("its current resources, if the new size has to wait"),
        ]
    if workspace.state == State.PENDING:
        return [_("its position in the queue, which is set again")]
    return [_("nothing; the new size applies at the next start")]


def _unchanged_lines(workspace: Workspace) -> Sequence[str]:
    lines = [
        _("all files in the home folder"),
        _("the workspace, its software and its address"),
    ]
    if workspace.gpu_released:
        lines.append(_("the release of its GPUs; attach them to use the new size"))
    return lines
