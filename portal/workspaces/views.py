"""Pages of workspaces: they parse, call services and render. templates/workspaces/ says what each expects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_safe

from portal.accounts import selectors as accounts
from portal.catalog import selectors as catalog
from portal.common.errors import InvalidInput, NotFound, PortalError
from portal.common.htmx import local_path, partial_of, wants
from portal.common.requests import SignedInRequest
from portal.common.texts import storable
from portal.events import live
from portal.events.stream import let_go
from portal.inventory import pages as inventory_pages
from portal.inventory import selectors as inventory
from portal.quotas import limit_pages
from portal.workspaces import gateway, pages, selectors, services
from portal.workspaces.lifecycle import LIVE, State
from portal.workspaces.models import Workspace

WORKSPACES_PER_PAGE = 24
EVENTS_SHOWN = 50
LOG_LINES = 200
# A stream ends after a while, so that a right taken away ends it too; the browser connects anew.
STREAM_S = 600


@require_safe
@login_required
@never_cache
def home(request: SignedInRequest) -> HttpResponse:
    """My workspaces, the button that repeats the last choice, and what is free."""
    user = request.user
    if wants(request, "capacity"):
        free = {
            "capacities": inventory_pages.capacities(inventory.pools()),
            "team_quotas": limit_pages.for_home(user),
        }
        return render(request, "workspaces/home.html#capacity", free)
    filters = {name: storable(request.GET.get(name, "")).strip()[:100] for name in ("q", "state", "whose")}
    sees_all = pages.can_see_all(user)
    if filters["whose"] == "all" and sees_all:
        listed = selectors.workspaces_for(user).filter(state__in=LIVE)
    else:
        filters["whose"] = ""
        listed = selectors.own_live(user)
    found = pages.filtered(listed, q=filters["q"], state=filters["state"])
    page = Paginator(found, WORKSPACES_PER_PAGE).get_page(request.GET.get("page"))
    shown = pages.cards(user, page.object_list)
    context: dict[str, Any] = {
        "cards": shown,
        "page": page,
        "total": listed.count(),
        "filters": filters,
        "can_see_all": sees_all,
    }
    if not wants(request, "list"):
        context |= {
            "states": [(state.value, state.label) for state in State if state in LIVE],
            "last": pages.last_choice(user),
            "capacities": inventory_pages.capacities(inventory.pools()),
            "transient": any(card.counting for card in shown),
            "team_quotas": limit_pages.for_home(user),
        }
    return render(request, partial_of(request, "workspaces/home.html", "list"), context)


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@never_cache
def new(request: SignedInRequest) -> HttpResponse:
    """Choose what, how big and for whom; the form asks for verdicts as it changes, and starts."""
    data = request.POST if request.method == "POST" else request.GET
    chosen = {name: data.get(name, "") for name in ("template", "flavor", "team")}
    error: PortalError | None = None
    if request.method == "POST" and "ask" in data:
        return _to_ask(request, chosen, data.get("name", ""))
    if request.method == "POST" and "check" not in data:
        try:
            return _create(request, chosen, data.get("name", ""))
        except PortalError as refused:
            error = refused
    choice = pages.choice(request.user, **chosen)
    suggested = ""
    if choice.team and choice.template:
        suggested = services.free_name(actor=request.user, team=choice.team, template=choice.template)
    name = data.get("name", "")
    # A name that the person has not touched follows the choice of template and team.
    rename = name in ("", data.get("suggested", ""))
    context = {
        "choice": choice,
        "name": suggested if rename else name,
        "suggested": suggested,
        "hours": storable(data.get("hours", ""))[:6],
    }
    if wants(request, "choice"):
        return render(request, "workspaces/new.html#choice", context | {"oob": True, "rename": rename})
    problems = error.extra.get("errors", {}) if error else {}
    context |= {
        "teams": accounts.own_teams(request.user),
        "name_problems": problems.get("name", []),
        "error": error,
    }
    return render(request, "workspaces/new.html", context, status=error.status if error else 200)


def _create(request: SignedInRequest, chosen: dict[str, str], name: str) -> HttpResponse:
    for field in ("template", "flavor", "team"):
        if not chosen[field]:
            raise InvalidInput(f"Choose a {field} first.", next_action="The summary shows what is missing.")
    workspace = services.create(
        actor=request.user,
        team=accounts.team_by_slug(request.user, chosen["team"]),
        template=catalog.template_by_slug(chosen["template"]),
        flavor=catalog.flavor_by_slug(chosen["flavor"]),
        name=name,
        expected_s=_seconds(request.POST.get("hours", "")),
    )
    return _to(workspace, opening=True)


def _seconds(hours: str) -> int | None:
    """What was typed as hours, in seconds; None for nothing. Raises `InvalidInput`."""
    text = storable(hours).strip().replace(",", ".")
    if not text:
        return None
    try:
        return round(float(text) * 3600)
    except (ValueError, OverflowError):
        raise InvalidInput("Say in hours how long you need it, such as 8 or 0.5.") from None


def _to_ask(request: SignedInRequest, chosen: dict[str, str], name: str) -> HttpResponse:
    """On to the form that asks for what is missing; it makes the workspace, which waits for the answer."""
    verdict = pages.choice(request.user, **chosen).verdict
    query = {**chosen, "name": name}
    if verdict is not None and verdict.ask is not None:
        query |= {
            "kind": verdict.ask.kind,
            "resource": verdict.ask.resource,
            "amount": str(verdict.ask.amount),
        }
    return redirect(f"{reverse('quotas:ask')}?{urlencode(query)}")


def _to(workspace: Workspace, *, opening: bool = False) -> HttpResponse:
    url = reverse("workspaces:detail", args=[workspace.pk])
    return redirect(f"{url}?open=1" if opening and not workspace.simulated else url)


@require_safe
@login_required
@never_cache
def detail(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """One workspace; with `?open=1` it opens by itself as soon as it is ready."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    opening = request.GET.get("open") == "1"
    entries = list(selectors.events_of(workspace).order_by("-pk")[: EVENTS_SHOWN + 1])
    context = {
        "workspace": workspace,
        "view": pages.detail(request.user, workspace, opening=opening),
        "events": pages.event_rows(entries[:EVENTS_SHOWN]),
        "more_events": len(entries) > EVENTS_SHOWN,
        "opening": opening,
        "log": None,
    }
    return render(request, partial_of(request, "workspaces/detail.html", "live"), context)


@require_safe
@login_required
@never_cache
def log(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """The last lines of the log, asked of the node."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    text, problem = "", ""
    try:
        text = services.read_logs(workspace=workspace, tail_lines=LOG_LINES)
    except PortalError as error:
        problem = " ".join(part for part in (error.message, error.next_action) if part)
    context = {
        "workspace": workspace,
        "view": pages.detail(request.user, workspace, opening=False),
        "log": text,
        "log_problem": problem,
    }
    page = "workspaces/detail.html#log" if wants(request, "log") else "workspaces/log.html"
    return render(request, page, context)


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def start(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Start a stopped workspace, or try a failed one again; it opens by itself when ready.

    A GET, as after signing in anew, only shows its page.
    """
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        return _to(workspace)
    try:
        workspace = services.start(actor=request.user, workspace_id=workspace_id)
    except PortalError as error:
        return _refused(request, workspace, error)
    return _to(workspace, opening=workspace.owner_id == request.user.pk)


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@never_cache
def stop(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Ask what ends and what stays; then stop."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        return render(request, "workspaces/stop.html", {"workspace": workspace})
    try:
        services.stop(actor=request.user, workspace_id=workspace_id)
    except PortalError as error:
        return _refused(request, workspace, error)
    if request.POST.get("next") == "home":
        return redirect("workspaces:home")
    return _to(workspace)


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@never_cache
def delete(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Ask what is lost and what stays; then delete."""
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if request.method != "POST":
        return render(request, "workspaces/delete.html", {"workspace": workspace})
    try:
        services.delete(actor=request.user, workspace_id=workspace_id)
    except PortalError as error:
        return _refused(request, workspace, error)
    messages.success(request, f"{workspace.name} is being deleted. Your home folder stays.")
    return redirect("workspaces:home")


def _refused(request: SignedInRequest, workspace: Workspace, error: PortalError) -> HttpResponse:
    messages.error(request, " ".join(part for part in (error.message, error.next_action) if part))
    return _to(workspace)


@require_GET
@login_required
@never_cache
def open_(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Into the workspace: a one-time ticket on its own origin, or its page while it does not run.

    A redirect and not a form: a form may only lead to the portal itself.
    """
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    if workspace.state != State.RUNNING:
        return _to(workspace, opening=workspace.state in pages.STARTING)
    ticket = gateway.issue_ticket(actor=request.user, workspace=workspace)
    path = local_path(request.GET.get("next", ""), default=workspace.template.open_path)
    return redirect(f"{workspace.origin}/.berth/enter?{urlencode({'ticket': ticket, 'next': path})}")


@require_GET
async def events(request: HttpRequest) -> HttpResponseBase:
    """`changed` whenever one of my workspaces changes."""
    user = await request.auser()
    if not user.is_authenticated:
        return HttpResponse(status=401)
    return _stream(live.user_channel(user.pk))


@require_GET
async def workspace_events(request: HttpRequest, workspace_id: UUID) -> HttpResponseBase:
    """`changed` whenever this workspace changes."""
    user = await request.auser()
    if not user.is_authenticated:
        return HttpResponse(status=401)
    try:
        await sync_to_async(selectors.workspace_by_id)(user, workspace_id)
    except NotFound:
        return HttpResponse(status=404)
    return _stream(live.workspace_channel(workspace_id))


def _stream(channel: str) -> StreamingHttpResponse:
    response = StreamingHttpResponse(_changes(channel), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


async def _changes(channel: str) -> AsyncIterator[bytes]:
    """Server-sent events; a comment now and then keeps the connection and finds a reader who has left."""
    await let_go()
    ends_at = asyncio.get_running_loop().time() + STREAM_S
    # A reader who leaves ends this generator; the subscription must end with it, not at some later time.
    async with aclosing(live.hints(channel)) as hints:
        async for changed in hints:
            yield b"event: changed\ndata:\n\n" if changed else b": still here\n\n"
            if asyncio.get_running_loop().time() > ends_at:
                return
