"""Pages of sign-in, account and teams. See templates/accounts/ for the contexts."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST
from django_htmx.http import HttpResponseClientRedirect

from portal.common import etags, request_context
from portal.common.errors import InvalidInput, NotAllowed, PortalError, StateConflict
from portal.common.htmx import local_path
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import (
    limits,
    links,
    lockout,
    login_flow,
    policies,
    presenters,
    selectors,
    services,
    sessions,
    user_presenters,
    users,
)
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.forms import (
    ChangePasswordForm,
    EmailForm,
    ForgotPasswordForm,
    NewPasswordForm,
    SignInForm,
    TeamForm,
    add_problems,
    form_status,
)
from portal.people.accounts.mfa import attempts
from portal.people.accounts.mfa.proof import require_fresh_proof
from portal.people.accounts.models import Role

ROWS_PER_PAGE = 50
YEAR_S = 31_536_000
THEMES = frozenset({"light", "dark"})


@login_not_required
@sensitive_post_parameters("password")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def sign_in(request: HttpRequest) -> HttpResponse:
    """Sign in by name and password, then redirect to `next`."""
    next_url = local_path(request.POST.get("next") or request.GET.get("next", ""))
    if getattr(request, "htmx", False):
        # The session has ended before a partial request: redirect the whole page to sign-in.
        path = local_path(request.htmx.current_url_abs_path or "/")  # type: ignore[attr-defined]
        return HttpResponseClientRedirect(f"{reverse('accounts:sign-in')}?{urlencode({'next': path})}")
    if request.user.is_authenticated:
        return redirect(next_url)
    if request.method == "GET" and (left := request.session.get(sessions.LEFT)):
        # Any page may be the first to notice that the session has ended.
        return redirect(left["path"])
    if request.method == "POST" and lockout.refuses(request, request.POST.get("username", "")):
        return lockout.refused_sign_in_page(request)
    form = SignInForm(request, data=request.POST or None)
    if request.method == "POST":
        if form.is_valid():
            return login_flow.begin(request, form.get_user(), how="password", next_url=next_url)
        if request.POST.get("username"):
            locked_out = getattr(request, "axes_locked_out", False)
            if not locked_out:
                lockout.count_failure(request.POST["username"])
            sessions.sign_in_failed(username=request.POST["username"], locked_out=locked_out)
    context = {"form": form, "next": next_url, "mail": settings.BERTH_MAIL}
    return render(request, "accounts/sign_in.html", context)


@login_not_required
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def welcome(request: HttpRequest, user_id: UUID, link: str) -> HttpResponse:
    """Let the user of a link choose a password, and sign them in. Raises `StateConflict` for a spent link."""
    opened = links.resolve(user_id, link)
    if opened is None:
        raise StateConflict(Reason(AccountCode.LINK_SPENT), code=AccountCode.LINK_SPENT)
    user, kind = opened
    form = NewPasswordForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            joined = users.join(user=user, kind=kind, link=link, password=form.cleaned_data["password"])
        except InvalidInput as error:
            add_problems(form, error.field_errors, error.message)
        else:
            response = login_flow.begin(request, joined, how="link")
            message = _("Password set. You are signed in.")
            messages.success(request, message if request.user.is_authenticated else _("Password set."))
            return response
    teams = selectors.memberships_of(user)
    context = {"form": form, "username": user.username, "kind": kind.value, "memberships": teams}
    return render(request, "accounts/welcome.html", context, status=form_status(form))


@login_not_required
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def forgot_password(request: HttpRequest) -> HttpResponse:
    """Request a link by e-mail. The response does not reveal whether the account exists.

    Responds with 404 without a mail server.
    """
    if not settings.BERTH_MAIL:
        raise Http404
    form = ForgotPasswordForm(request.POST or None)
    submitted = request.method == "POST" and form.is_valid()
    if submitted:
        key = f"forgotten:{limits.network_of(request_context.current().address)}"
        if limits.count(key, window=lockout.WINDOW) > settings.BERTH_SIGN_IN_FAILURES_PER_ADDRESS:
            return lockout.refused_sign_in_page(request)
        users.forgot_password(form.cleaned_data["name"])
    context = {"form": form, "asked": submitted, "hours": settings.BERTH_FORGOTTEN_HOURS}
    return render(request, "accounts/forgotten.html", context, status=form_status(form))


@login_not_required
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End this session, and with it the user's access to all workspaces."""
    leave = request.session.get(sessions.LEAVE)
    if request.user.is_authenticated:
        sessions.sign_out(request, request.user)
    else:
        logout(request)
    if not leave:
        return redirect("accounts:sign-in")
    request.session[sessions.LEFT] = leave
    return redirect(leave["path"])


@login_not_required
@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Store the theme in a cookie and redirect back. An empty theme follows the system."""
    response = redirect(local_path(request.POST.get("next", "")))
    chosen = request.POST.get("theme", "")
    if chosen in THEMES:
        response.set_cookie(
            settings.BERTH_THEME_COOKIE,
            chosen,
            max_age=YEAR_S,
            samesite="Lax",
            secure=settings.HTTPS,
            httponly=False,
        )
    else:
        response.delete_cookie(settings.BERTH_THEME_COOKIE, samesite="Lax")
    return response


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def account(request: SignedInRequest) -> HttpResponse:
    """Show the account and its sessions, and change the password."""
    form = ChangePasswordForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            attempts.password(request, request.user, data["old_password"], field="old_password")
            users.change_password(
                request,
                user=request.user,
                old=data["old_password"],
                password=data["new_password"],
                end_tokens=data["end_tokens"],
            )
        except InvalidInput as error:
            add_problems(form, error.field_errors, error.message)
        else:
            messages.success(request, _("Password changed. Other browsers are signed out."))
            return redirect("accounts:account")
    return _account(request, form)


@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def email(request: SignedInRequest) -> HttpResponse:
    """Change the address. A GET, as after a new sign-in, only shows the account."""
    if request.method != "POST":
        return redirect("accounts:account")
    form = EmailForm(request.POST)
    if form.is_valid():
        data = form.cleaned_data
        try:
            attempts.password(request, request.user, data["password"], field="password")
            users.change_email(user=request.user, email=data["email"], password=data["password"])
        except InvalidInput as error:
            add_problems(form, error.field_errors, error.message)
        else:
            messages.success(request, _("E-mail address changed."))
            return redirect("accounts:account")
    return _account(request, ChangePasswordForm(), email_form=form)


@require_http_methods(["GET", "HEAD", "POST"])
def session_end(request: SignedInRequest, session_id: UUID) -> HttpResponse:
    """End one of the user's sessions. A GET, as after a new sign-in, only shows the account."""
    if request.method == "POST":
        sessions.end_own_session(actor=request.user, session_id=session_id)
        messages.success(request, _("Session ended."))
    return redirect("accounts:account")


@require_http_methods(["GET", "HEAD", "POST"])
def sessions_end(request: SignedInRequest) -> HttpResponse:
    """End all of the user's other sessions. A GET only shows the account."""
    if request.method == "POST":
        count = sessions.end_other_sessions(request, request.user)
        messages.success(
            request,
            ngettext("%(count)d other session ended.", "%(count)d other sessions ended.", count)
            % {"count": count},
        )
    return redirect("accounts:account")


def _account(
    request: SignedInRequest, form: ChangePasswordForm, *, email_form: EmailForm | None = None
) -> HttpResponse:
    status = form_status(email_form if email_form is not None else form)
    rows = user_presenters.session_rows(request.user, request.session.session_key or "")
    context = {
        "form": form,
        "email_form": email_form or EmailForm(initial={"email": request.user.email}),
        "sessions": rows,
        "others": any(not row["current"] for row in rows),
        "token_count": selectors.tokens_of(request.user).count(),
        "memberships": selectors.memberships_of(request.user),
        "roles": presenters.rights(request.user),
        "mail": settings.BERTH_MAIL,
        "may_delete": policies.may_delete_own_account(request.user),
    }
    return render(request, "accounts/account.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def account_delete(request: SignedInRequest) -> HttpResponse:
    """Show the consequences, then delete one's own account and end the session."""
    if not policies.may_delete_own_account(request.user):
        raise NotAllowed(Reason(AccountCode.ACCOUNT_DELETION_OFF))
    if request.method == "POST":
        try:
            users.delete(
                actor=request.user,
                user=request.user,
                delete_workspaces=request.POST.get("workspaces") == "delete",
                delete_homes=request.POST.get("homes") == "delete",
            )
        except PortalError as error:
            messages.error(request, error.sentence)
            return redirect("accounts:account-delete")
        logout(request)
        messages.success(request, _("Account deleted."))
        return redirect("accounts:sign-in")
    question = user_presenters.own_deletion_question(request.user)
    return render(
        request,
        "confirm.html",
        {**question, "action": request.path, "back": reverse("accounts:account")},
    )


@require_http_methods(["GET", "HEAD", "POST"])
def notices(request: SignedInRequest) -> HttpResponse:
    """Enable or disable e-mail. A GET, as after a new sign-in, only shows the account."""
    if request.method == "POST":
        enabled = request.POST.get("mail") == "on"
        services.set_mail_notices(actor=request.user, enabled=enabled)
        message = (
            _("Notices are also sent by e-mail.") if enabled else _("Notices appear in the portal only.")
        )
        messages.success(request, message)
    return redirect("accounts:account")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def teams(request: SignedInRequest) -> HttpResponse:
    """List the visible teams. Operators can create one."""
    form = TeamForm(request.POST or None) if request.user.operates else None
    if request.method == "POST":
        policies.require_operator(request.user)
        if form is not None and form.is_valid():
            try:
                team = services.create_team(actor=request.user, owner=request.user, **form.cleaned_data)
            except PortalError as error:
                add_problems(form, error.field_errors, error.message)
            else:
                messages.success(request, _("Team created. You are the owner.") % {"team": team.name})
                return redirect(f"{reverse('home:team', args=[team.slug])}?created=1")
    q = strip_nul(request.GET.get("q", "")).strip()[:100]
    matches = selectors.teams_for(request.user)
    total = matches.count()
    if q:
        matches = matches.filter(name__icontains=q)
    page = Paginator(matches, ROWS_PER_PAGE).get_page(request.GET.get("page"))
    roles = selectors.roles_of(request.user)
    rows = [(team, Role(roles[team.pk]).label if team.pk in roles else "") for team in page.object_list]
    context = {"page": page, "rows": rows, "q": q, "total": total, "form": form}
    return render(request, "accounts/teams.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
def member_role(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Change a member's role. A GET, as after a new sign-in, only shows the team."""
    if request.method != "POST":
        return redirect("home:team", slug)
    team = selectors.team_by_slug(request.user, slug)
    policies.require_manage_team(request.user, team)
    try:
        services.set_member(
            actor=request.user,
            team=team,
            username=username,
            role=request.POST.get("role", ""),
            expected=etags.expected_versions(request),
        )
    except PortalError as error:
        messages.error(request, error.sentence, extra_tags="members")
    else:
        messages.success(
            request,
            _("%(username)s now has the role %(role)s.")
            % {"username": username, "role": Role(request.POST["role"]).label.lower()},
            extra_tags="members",
        )
    return redirect(_members_url(slug))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def member_remove(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Ask for confirmation, then remove a member from the team."""
    team = selectors.team_by_slug(request.user, slug)
    leaving = username == request.user.username
    if not leaving:
        policies.require_manage_team(request.user, team)
    if request.method == "POST":
        try:
            services.remove_member(actor=request.user, team=team, username=username)
        except PortalError as error:
            messages.error(request, error.sentence, extra_tags="members")
            return redirect("home:team", slug)
        text = _("%(username)s removed from %(team)s.") % {"username": username, "team": team.name}
        if leaving and not request.user.operates:
            messages.success(request, text)
            return redirect("accounts:teams")
        messages.success(request, text, extra_tags="members")
        return redirect(_members_url(slug))
    workspaces = selectors.workspace_names(team, username)
    question = presenters.leaving_question(team) if leaving else presenters.removal_question(team, username)
    context = {**question, "action": request.path, "back": reverse("home:team", args=[slug])}
    if workspaces:
        context |= {
            "holds": workspaces,
            "hold_lead": presenters.blocking_workspaces_text(team, username, leaving=leaving),
            "holds_url": _workspaces_url(slug, username),
        }
    return render(request, "confirm.html", context)


def _members_url(slug: str) -> str:
    """Return the URL of the members on the team's page. It shows the messages tagged `members`."""
    return f"{reverse('home:team', args=[slug])}#members"


def _workspaces_url(slug: str, username: str) -> str:
    """Return the URL of the member's workspaces in the team, as seen by the actor."""
    return f"{reverse('workspace_list:list')}?{urlencode({'team': slug, 'owner': username})}"
