"""Pages of requests: form, inbox and details. Contexts are documented in templates/quota_requests/."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.catalog import selectors as catalog
from portal.catalog.lifetimes import lifetime_of
from portal.catalog.repositories.rules import Source
from portal.common.errors import PortalError
from portal.common.formatting import format_input, format_resource_amount
from portal.common.htmx import partial_of, requests_element
from portal.common.texts import parse_hours, strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import approvers
from portal.people.accounts import selectors as accounts
from portal.people.accounts.forms import add_problems
from portal.people.accounts.mfa.proof import require_fresh_proof
from portal.people.accounts.models import Team, User
from portal.quota.limits import resources
from portal.quota.requests import policies, presenters
from portal.quota.requests import selectors as selectors
from portal.quota.requests.forms import AskForm, DecideForm, base_units, end_after
from portal.quota.requests.models import QuotaRequest, RequestKind
from portal.quota.requests.services import requests as services
from portal.workspaces import software
from portal.workspaces.order import WorkspaceOrder, require_choices

ROWS_PER_PAGE = 20
HISTORY = 50


# --- Asking -----------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def ask(request: SignedInRequest) -> HttpResponse:
    """Show the request form, prefilled by the page that denied: team, kind, resource, amount (base units).

    With template, flavor and name, the request includes a workspace that starts after approval; its further
    fields (hours, checkpoints, software) are those of a new workspace.
    """
    data = request.POST if request.method == "POST" else request.GET
    teams = list(accounts.chargeable_teams(request.user))
    start, gone = _start(request.user, data)
    resource_names = presenters.known_resources(teams, _resource(data.get("resource", "")))
    hint = requests_element(request, "hint")
    team = next((item for item in teams if item.slug == data.get("team")), teams[0] if teams else None)
    resource = _resource(data.get("resource", "")) or presenters.limited_resource(team, resource_names)
    form = AskForm(
        request.POST if request.method == "POST" else None,
        initial=_initial(data, resource),
        teams=teams,
        resource_names=resource_names,
    )
    if request.method == "POST" and not gone and form.is_valid() and team is not None:
        try:
            quota_request = _ask(request, form, team, start)
        except PortalError as error:
            first = error.extra.get("url", "")
            if first:
                messages.error(request, f"{error.message} {error.next_action}")
                return redirect(first)
            problems = error.field_errors
            if "until" in problems:
                problems["lasts"] = problems.pop("until")
            add_problems(form, problems, error.sentence)
        else:
            return redirect("quota_requests:request", quota_request.pk)
    context = {
        "form": form,
        "teams": teams,
        "start": start,
        "hours": strip_nul(data.get("hours", "")),
        "gone": gone,
        "hint": _hint(request, team, data, resource),
        "team": team if request.GET.get("team") else None,
    }
    if hint:
        return render(request, "quota_requests/ask.html#hint", context)
    status = 400 if form.is_bound and form.errors else 200
    return render(request, "quota_requests/ask.html", context, status=status)


def _start(actor: User, data: Any) -> tuple[dict[str, Any] | None, str]:
    """Return the fields of the workspace order without its team, or None, and why it is impossible."""
    template, flavor = data.get("template", ""), data.get("flavor", "")
    if not (template and flavor):
        return None, ""
    try:
        chosen_template = catalog.template_by_slug(actor, strip_nul(template))
        size = catalog.flavor_by_slug(actor, strip_nul(flavor))
        fallbacks = [
            catalog.flavor_by_slug(actor, slug) for slug in strip_nul(data.get("fallbacks", "")).split()
        ]
        start_within_s = _seconds(data.get("start_within_s", ""))
        require_choices([size, *fallbacks], start_within_s)
        lifetime_s = parse_hours(data.get("hours", ""))
        # Fail before the user writes a justification.
        lifetime_of(chosen_template, size, lifetime_s)
        return {
            "template": chosen_template,
            "flavor": size,
            "fallbacks": fallbacks,
            "start_within_s": start_within_s,
            "start_without_gpu": "start_without_gpu" in data,
            "move_home": "move_home" in data,
            "name": strip_nul(data.get("name", "")),
            "lifetime_s": lifetime_s,
            # An unchecked box means unset: the template and flavor decide.
            "checkpointed": True if "checkpointed" in data else None,
            "secrets": strip_nul(data.get("secrets", "")).split(),
            "git": _git(data),
            "environment": software.find_environment(actor, strip_nul(data.get("environment", ""))),
        }, ""
    except PortalError as error:
        return None, error.message


def _seconds(entered: str) -> int:
    """Return the seconds as a number; 0 if empty, and -1, which every order rejects, if invalid."""
    if not entered:
        return 0
    return int(entered) if entered.isascii() and entered.isdigit() and len(entered) < 8 else -1


def _git(data: Any) -> Source | None:
    """Return the repository from the fields of a new workspace, or None if empty."""
    url, ref, secret = (strip_nul(data.get(f"git_{name}", "")).strip() for name in ("url", "ref", "secret"))
    return Source(url=url, ref=ref, secret=secret) if url or ref or secret else None


def _initial(data: Any, resource: str) -> dict[str, Any]:
    kind = data.get("kind", "")
    initial: dict[str, Any] = {
        "team": data.get("team", ""),
        "kind": kind if kind in RequestKind.values else RequestKind.QUOTA,
        "resource": resource,
        "lasts": "168",
    }
    entered = data.get("amount", "")
    if entered.isascii() and entered.isdigit() and len(entered) < 16:
        counted = resources.GPU_HOURS if kind == RequestKind.LEDGER else initial["resource"]
        initial["amount"] = format_input(counted, int(entered), 3) if counted else ""
    return initial


def _resource(name: str) -> str:
    """Return the name if it is a valid resource, else an empty string."""
    return name if resources.is_resource(name) else ""


def _ask(request: SignedInRequest, form: AskForm, team: Team, start: dict[str, Any] | None) -> QuotaRequest:
    cleaned = form.cleaned_data
    wanted = {
        "kind": cleaned["kind"],
        "resource": cleaned["resource"],
        "amount": cleaned["units"],
        "until": end_after(cleaned["lasts"]),
        "note": cleaned["note"],
    }
    if start is None:
        return services.create_request(actor=request.user, team=team, **wanted)
    order = WorkspaceOrder(team=team, **start)
    return services.ask_to_start(actor=request.user, order=order, **wanted)


def _hint(request: SignedInRequest, team: Team | None, data: Any, resource: str) -> dict[str, Any] | None:
    """Return the team's usage for the selection, and the amount that a rule would approve at once."""
    kind = data.get("kind", RequestKind.QUOTA)
    if team is None or not resource or kind not in RequestKind.values:
        return None
    if kind == RequestKind.LEDGER:
        resource = resources.GPU_HOURS
    draft = QuotaRequest(team=team, requester=request.user, kind=kind, resource=resource, amount=1)
    usage_lines = [line for line in presenters.lines(selectors.evidence(draft)) if line.key in HINTS]
    at_once = (
        selectors.immediate_approval(request.user, team, resource) if kind == RequestKind.QUOTA else None
    )
    return {
        "team": team,
        "lines": usage_lines,
        "at_once": _("up to %(amount)s for up to %(hours)s h")
        % {"amount": format_resource_amount(resource, at_once.amount), "hours": at_once.hours}
        if at_once
        else "",
        "by": _("an owner of the team") if kind == RequestKind.MEMBER_CAP else _("an approver"),
    }


HINTS = frozenset({"standing", "budget", "site"})


# --- Deciding ---------------------------------------------------------------------------------------


@require_safe
@never_cache
def approvals(request: SignedInRequest) -> HttpResponse:
    """Show requests for the user to decide, recent decisions, and the user's own requests."""
    user = request.user
    if requests_element(request, "news"):
        # Only counts new requests, so that forms in progress are preserved.
        shown = strip_nul(request.GET.get("known", "")).split(",")
        ids = [str(pk) for pk in selectors.requests_to_decide(user).values_list("pk", flat=True)]
        context: dict[str, Any] = {"more": len([pk for pk in ids if pk not in shown])}
        return render(request, "quota_requests/approvals.html#news", context)
    rows = presenters.inbox(user)
    decides = policies.may_decide_any(user)
    context = {
        "rows": rows,
        "waiting": selectors.open_count(user) if rows else 0,
        "known": ",".join(str(row.request.pk) for row in rows),
        "decides": decides,
        "approves": approvers.may_decide_all(user),
        "in_place_of": None if approvers.is_approver(user) else approvers.delegator_of(user),
        "decided": [presenters.present_request(user, item) for item in selectors.latest_decisions(user)]
        if decides
        else [],
        "page": Paginator(selectors.requests_of_user(user), ROWS_PER_PAGE).get_page(request.GET.get("page")),
    }
    return render(request, "quota_requests/approvals.html", context)


@require_safe
@never_cache
def detail(request: SignedInRequest, request_id: UUID) -> HttpResponse:
    """Show one request with its result and the user's actions."""
    quota_request = selectors.request_by_id(request.user, request_id)
    sees_evidence = selectors.may_decide(request.user, quota_request)
    context = {
        "item": presenters.present_request(
            request.user,
            quota_request,
            selectors.evidence(quota_request) if sees_evidence else None,
            shows_result=quota_request.decided_by_id == request.user.pk,
        ),
        "events": selectors.history_of(quota_request)[:HISTORY],
        "own": quota_request.requester_id == request.user.pk,
        "next_url": _next_url(request, in_inbox=False),
    }
    return render(request, partial_of(request, "quota_requests/request.html", "live"), context)


def _is_large_approval(request: HttpRequest, *, request_id: UUID) -> bool:
    """Return whether the posted approval is large enough to require recent authentication."""
    form = DecideForm(request.POST)
    if request.POST.get("decision") == "deny" or not form.is_valid():
        return False
    quota_request = selectors.request_by_id(cast(SignedInRequest, request).user, request_id)
    amount = form.cleaned_data["amount"]
    return policies.is_large(
        quota_request, base_units(quota_request.resource, amount) if amount is not None else None
    )


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof(when=_is_large_approval)
def decide(request: SignedInRequest, request_id: UUID) -> HttpResponse:
    """Approve, approve less, or deny. A GET, as after signing in again, only shows the request."""
    quota_request = selectors.request_by_id(request.user, request_id)
    if request.method != "POST":
        return redirect("quota_requests:request", request_id)
    form = DecideForm(request.POST)
    problem = ""
    if not form.is_valid():
        problem = str(next(iter(form.errors.values()))[0])
    else:
        try:
            _decide(request, quota_request, form)
        except PortalError as error:
            problem = error.sentence
    return _render_decision(request, request_id, problem)


def _decide(request: SignedInRequest, quota_request: QuotaRequest, form: DecideForm) -> None:
    cleaned = form.cleaned_data
    if request.POST.get("decision") == "deny":
        services.deny(actor=request.user, request_id=quota_request.pk, note=cleaned["note"])
        return
    amount = cleaned["amount"]
    services.approve(
        actor=request.user,
        request_id=quota_request.pk,
        amount=base_units(quota_request.resource, amount) if amount is not None else None,
        until=form.until(),
        note=cleaned["note"],
    )


def _render_decision(request: SignedInRequest, request_id: UUID, problem: str) -> HttpResponse:
    """Render the updated request: its fragment, or the page of the decision."""
    if request.htmx:
        quota_request = selectors.request_by_id(request.user, request_id)
        still_open = selectors.may_decide(request.user, quota_request)
        in_inbox = request.POST.get("next") == "inbox"
        item = presenters.present_request(
            request.user,
            quota_request,
            selectors.evidence(quota_request) if still_open else None,
            problem=problem,
            given=request.POST.dict() if problem else None,
            focus=True,
            shows_result=True,
        )
        context = {
            "item": item,
            "waiting": selectors.open_count(request.user),
            "just_decided": True,
            "alone": not in_inbox,
            "own": quota_request.requester_id == request.user.pk,
            "events": () if in_inbox else selectors.history_of(quota_request)[:HISTORY],
            "next_url": _next_url(request, in_inbox=in_inbox),
        }
        return render(request, "components/quota_request.html", context)
    if problem:
        messages.error(request, problem)
    if request.POST.get("next") == "inbox":
        return redirect(f"{reverse('quota_requests:approvals')}#r-{request_id}")
    return redirect("quota_requests:request", request_id)


def _next_url(request: SignedInRequest, *, in_inbox: bool) -> str:
    """Return the URL (in the inbox, the anchor) of the oldest request that the reader may decide, or “”."""
    oldest = selectors.requests_to_decide(request.user).values_list("pk", flat=True).first()
    if oldest is None:
        return ""
    return f"#r-{oldest}" if in_inbox else reverse("quota_requests:request", args=[oldest])


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def cancel(request: SignedInRequest, request_id: UUID) -> HttpResponse:
    """Cancel one's own request. A GET, as after signing in again, only shows it."""
    selectors.request_by_id(request.user, request_id)
    if request.method == "POST":
        try:
            services.cancel(actor=request.user, request_id=request_id)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Request cancelled."))
    return redirect("quota_requests:request", request_id)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def revoke(request: SignedInRequest, grant_id: UUID) -> HttpResponse:
    """End a grant now. A GET, as after signing in again, only shows the inbox."""
    if request.method != "POST":
        return redirect("quota_requests:approvals")
    grant = selectors.grant_by_id(request.user, grant_id)
    problem = ""
    try:
        services.revoke_grant(actor=request.user, grant_id=grant_id, note=request.POST.get("note", ""))
    except PortalError as error:
        problem = error.sentence
    if grant.request_id is not None:
        return _render_decision(request, grant.request_id, problem)
    if problem:
        messages.error(request, problem)
    return redirect("home:team", grant.team.slug)
