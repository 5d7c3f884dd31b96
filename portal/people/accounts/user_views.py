"""Pages about users, for administrators and, read-only, auditors.

See templates/accounts/ for the contexts.
"""

from __future__ import annotations

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common import etags
from portal.common.errors import PortalError
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import deactivation, policies, selectors, services, user_presenters, users
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.mfa import factors
from portal.people.accounts.mfa import services as mfa
from portal.people.accounts.mfa.proof import require_fresh_proof
from portal.people.accounts.models import AccountKind, AccountState, Role, SecondFactor, SiteRole, Team, User
from portal.people.accounts.user_forms import InviteForm, UserForm

ROWS_PER_PAGE = 50
ENTRIES = 50
FACTORS = [(factors.NO_FACTOR, gettext_lazy("No second factor")), *SecondFactor.choices]
STATES = [choice for choice in AccountState.choices if choice[0] != AccountState.DELETED]


def _gives_roles(request: HttpRequest) -> bool:
    return request.method == "POST" and "roles" in request.POST


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof(when=_gives_roles)
def people(request: SignedInRequest) -> HttpResponse:
    """List accounts and invite users. The invitation link is shown only once."""
    if request.method == "POST":
        policies.require_administrator(request.user)
    rows = factors.prefetch_factors(selectors.users_for(request.user))
    form = InviteForm(request.POST or None)
    link = None
    if request.method == "POST" and form.is_valid():
        try:
            link = users.invite(actor=request.user, **form.service_arguments())
        except PortalError as error:
            add_problems(form, error.field_errors, error.message)
        else:
            form = InviteForm()
    q = strip_nul(request.GET.get("q", "")).strip()
    state, role = request.GET.get("state", ""), request.GET.get("role", "")
    if q:
        rows = selectors.search_users(rows, q)
    if state in AccountState.values:
        rows = rows.with_state(state)
    if role in SiteRole.values:
        rows = rows.with_role(role)
    kind = request.GET.get("kind", "")
    if kind in AccountKind.values:
        rows = rows.of_kind(kind)
    factor = request.GET.get("second_factor", "")
    if factor in dict(FACTORS):
        rows = factors.users_with_factor(rows, factor)
    page = Paginator(rows, ROWS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "rows": [(person, factors.kinds_of(person)) for person in page],
        "looks": user_presenters.LOOKS,
        "q": q,
        "state": state,
        "states": STATES,
        "kind": kind,
        "kinds": AccountKind.choices,
        "factor": factor,
        "factors": FACTORS,
        "role": role,
        "site_roles": SiteRole.choices,
        "filtered": bool(q or state or role or kind or factor),
        "form": form,
        "link": link,
    }
    return render(request, "accounts/users.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def person(request: SignedInRequest, username: str) -> HttpResponse:
    """Show one account with its roles, sessions and activity, and change it."""
    user = selectors.user_by_name(request.user, username)
    if user.owning_team is not None:
        return redirect("service_accounts:account", user.owning_team.slug, username)
    form = None
    if request.method == "POST":
        policies.require_administrator(request.user)
        form = UserForm(request.POST)
        if form.is_valid():
            try:
                users.change(
                    actor=request.user,
                    user=user,
                    expected=etags.expected_versions(request),
                    **form.cleaned_data,
                )
            except PortalError as error:
                add_problems(form, error.field_errors, error.sentence)
            else:
                messages.success(request, _("Account saved."))
                return redirect("accounts:user", username)
    return _person(request, user, form)


def _person(
    request: SignedInRequest, user: User, form: UserForm | None = None, link: users.Link | None = None
) -> HttpResponse:
    memberships = selectors.memberships_of(user)
    context = {
        "person": user,
        "factors": factors.overview_of(user),
        "look": user_presenters.LOOKS[user.state],
        "form": form or UserForm(initial={"email": user.email, "roles": user.roles}),
        "memberships": memberships,
        "other_teams": Team.objects.exclude(memberships__user=user).order_by("name"),
        "team_roles": Role.choices,
        "sessions": user_presenters.session_rows(user, request.session.session_key or ""),
        "tokens": selectors.tokens_of(user),
        "entries": selectors.entries_about(user)[:ENTRIES],
        "link": link,
    }
    return render(request, "accounts/user.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
def user_team(request: SignedInRequest, username: str) -> HttpResponse:
    """Add a user to a team. A GET, as after a new sign-in, only shows the account."""
    user = selectors.user_by_name(request.user, username)
    if request.method == "POST":
        policies.require_administrator(request.user)
        try:
            team = selectors.team_by_slug(request.user, request.POST.get("team", ""))
            services.set_member(
                actor=request.user, team=team, username=user.username, role=request.POST.get("role", "")
            )
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(
                request, _("%(username)s added to %(team)s.") % {"username": user.username, "team": team.name}
            )
    return redirect("accounts:user", username)


@require_http_methods(["GET", "HEAD", "POST"])
def user_reactivate(request: SignedInRequest, username: str) -> HttpResponse:
    """Reactivate an account. A GET only shows the account."""
    user = selectors.user_by_name(request.user, username)
    if request.method == "POST":
        deactivation.reactivate(actor=request.user, user=user)
        messages.success(request, _("%(username)s reactivated.") % {"username": username})
    return redirect("accounts:user", username)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def user_invite(request: SignedInRequest, username: str) -> HttpResponse:
    """Show a new invitation link once. A GET only shows the account."""
    user = selectors.user_by_name(request.user, username)
    if request.method != "POST":
        return redirect("accounts:user", username)
    policies.require_administrator(request.user)
    try:
        link = users.invite_again(actor=request.user, user=user)
    except PortalError as error:
        messages.error(request, error.sentence)
        return redirect("accounts:user", username)
    return _person(request, link.user, link=link)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def user_deactivate(request: SignedInRequest, username: str) -> HttpResponse:
    return _confirm_or_run(request, username, "deactivate")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def user_delete(request: SignedInRequest, username: str) -> HttpResponse:
    return _confirm_or_run(request, username, "delete")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def user_reset(request: SignedInRequest, username: str) -> HttpResponse:
    return _confirm_or_run(request, username, "reset-password")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def user_reset_mfa(request: SignedInRequest, username: str) -> HttpResponse:
    return _confirm_or_run(request, username, "reset-mfa")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def user_end_sessions(request: SignedInRequest, username: str) -> HttpResponse:
    return _confirm_or_run(request, username, "end-sessions")


def _confirm_or_run(request: SignedInRequest, username: str, action: str) -> HttpResponse:
    """Show a confirmation with the consequences, then run the action. For administrators."""
    policies.require_administrator(request.user)
    user = selectors.user_by_name(request.user, username)
    back = reverse("accounts:user", args=[username])
    if request.method != "POST":
        question = user_presenters.question(action, request.user, user)
        return render(request, "confirm.html", {**question, "action": request.path, "back": back})
    try:
        return _run_action(request, user, action)
    except PortalError as error:
        messages.error(request, error.sentence)
        return redirect(back)


def _run_action(request: SignedInRequest, user: User, action: str) -> HttpResponse:
    params = {"username": user.username}
    match action:
        case "deactivate":
            reason = strip_nul(request.POST.get("note", "")).strip()[:200]
            deactivation.deactivate(actor=request.user, user=user, reason=reason)
            messages.success(request, _("%(username)s deactivated.") % params)
        case "delete":
            users.delete(
                actor=request.user,
                user=user,
                delete_workspaces=request.POST.get("workspaces") == "delete",
                delete_homes=request.POST.get("homes") == "delete",
            )
            messages.success(request, _("Account of %(username)s deleted.") % params)
            return redirect("accounts:users")
        case "reset-mfa":
            mfa.reset(actor=request.user, user=user)
            messages.success(request, _("Second factors of %(username)s reset.") % params)
        case "reset-password":
            link = users.reset_password(actor=request.user, user=user)
            return _person(request, link.user, link=link)
        case _:
            users.end_sessions(actor=request.user, user=user, tokens=bool(request.POST.get("tokens")))
            messages.success(request, _("All sessions of %(username)s ended.") % params)
    return redirect("accounts:user", user.username)
