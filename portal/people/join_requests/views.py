"""Pages of joinable teams and join requests. See templates/join_requests/ for the contexts."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.common.errors import InvalidInput, PortalError
from portal.common.htmx import local_path, partial_of
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.models import Role
from portal.people.accounts.policies import require_role_for
from portal.people.join_requests import policies, presenters, selectors, services
from portal.people.join_requests.forms import AskForm

ROWS_PER_PAGE = 50


@require_safe
@never_cache
def teams(request: SignedInRequest) -> HttpResponse:
    """List teams that the user is not in, and the user's requests."""
    q = strip_nul(request.GET.get("q", "")).strip()[:100]
    rows = selectors.joinable_teams(request.user)
    total = rows.count()
    if q:
        rows = selectors.search_teams(rows, q)
    context = {
        "page": Paginator(rows, ROWS_PER_PAGE).get_page(request.GET.get("page")),
        "q": q,
        "total": total,
        "lists_teams": policies.lists_teams() or request.user.sees_all,
        "own_joins": presenters.present_own_requests(request.user),
    }
    return render(request, "join_requests/teams.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def ask(request: SignedInRequest, slug: str) -> HttpResponse:
    """Ask to join a team, with a message to its owners."""
    team = selectors.listed_team(request.user, slug)
    require_role_for(request.user, Role.MEMBER)
    form = AskForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            join_request, new = services.request_to_join(
                actor=request.user, slug=slug, text=form.cleaned_data["message"]
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            message = (
                _("Request sent. You will be notified of the decision.")
                if new
                else _("You already have an open request.")
            )
            messages.success(request, message)
            return redirect(services.url_of(join_request))
    joinable = selectors.joinable_teams(request.user).filter(pk=team.pk).first()
    context = {"team": team, "listed": joinable, "form": form}
    return render(request, "join_requests/ask.html", context, status=form_status(form))


@require_safe
@never_cache
def request_page(request: SignedInRequest, join_id: UUID) -> HttpResponse:
    """Show a request with its state and available actions."""
    join_request = selectors.request_by_id(request.user, join_id)
    context = {
        "item": presenters.present_request(request.user, join_request),
        "own": join_request.requester_id == request.user.pk,
        "roles": presenters.roles(),
    }
    return render(request, partial_of(request, "join_requests/request.html", "live"), context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def decide(request: SignedInRequest, join_id: UUID) -> HttpResponse:
    """Approve or deny a request. A GET, as after a new sign-in, only shows it."""
    join_request = selectors.request_by_id(request.user, join_id)
    if request.method == "POST":
        try:
            done = _decide(request, join_id)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, done)
            return redirect(local_path(request.POST.get("next", ""), services.url_of(join_request)))
    return redirect(services.url_of(join_request))


def _decide(request: SignedInRequest, join_id: UUID) -> str:
    action = request.POST.get("do", "")
    if action == "approve":
        join_request = services.approve(
            actor=request.user,
            request_id=join_id,
            role=request.POST.get("role", "member"),
            note=request.POST.get("note", ""),
        )
        params = {
            "username": join_request.requester.username,
            "team": join_request.team_name,
            "role": join_request.granted_role_label.lower(),
        }
        return _("%(username)s is now %(role)s of %(team)s.") % params
    if action == "deny":
        join_request = services.deny(
            actor=request.user, request_id=join_id, note=request.POST.get("note", "")
        )
        return _("Denied. %(username)s receives your note.") % {"username": join_request.requester.username}
    raise InvalidInput(Reason(CommonCode.CHOOSE_WHAT_TO_DO))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def cancel(request: SignedInRequest, join_id: UUID) -> HttpResponse:
    """Cancel a request. A GET, as after a new sign-in, only shows it."""
    join_request = selectors.request_by_id(request.user, join_id)
    if request.method == "POST":
        try:
            services.cancel(actor=request.user, request_id=join_id)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Request cancelled."))
    return redirect(services.url_of(join_request))
