"""Pages of service accounts. See templates/service_accounts/ for the contexts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common import etags
from portal.common.errors import PortalError
from portal.common.htmx import public_url
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import deactivation, service_accounts, tokens, users
from portal.people.accounts import selectors as accounts
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.mfa.proof import require_fresh_proof
from portal.people.accounts.models import ApiToken, User
from portal.people.accounts.policies import may_manage_team, require_manage_account, require_manage_team
from portal.people.accounts.user_presenters import LOOKS
from portal.people.service_accounts import policies, presenters, selectors
from portal.people.service_accounts.forms import DescriptionForm, NewAccountForm, RotateForm, ServiceTokenForm

ROWS_PER_PAGE = 50


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def listing(request: SignedInRequest, slug: str) -> HttpResponse:
    """List the team's service accounts. Team owners and operators can create one."""
    team = accounts.team_by_slug(request.user, slug)
    form = NewAccountForm(request.POST or None)
    if request.method == "POST":
        require_manage_team(request.user, team)
        if form.is_valid():
            try:
                account = service_accounts.create(actor=request.user, team=team, **form.cleaned_data)
            except PortalError as error:
                add_problems(form, error.field_errors, error.sentence)
            else:
                messages.success(
                    request,
                    _("%(username)s created. Create a token for it.") % {"username": account.username},
                )
                return redirect("service_accounts:account", slug, account.username)
    context = {
        "team": team,
        "page": Paginator(selectors.service_accounts_of_team(team), ROWS_PER_PAGE).get_page(
            request.GET.get("page")
        ),
        "form": form,
        "looks": LOOKS,
        "may_manage": may_manage_team(request.user, team),
    }
    return render(request, "service_accounts/list.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def account(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Show a service account with its tokens, and change its description."""
    account = selectors.service_account_by_name(request.user, slug, username)
    form = None
    if request.method == "POST":
        _require_manage(request, account)
        form = DescriptionForm(request.POST)
        if form.is_valid():
            try:
                service_accounts.describe(
                    actor=request.user,
                    user=account,
                    description=form.cleaned_data["description"],
                    expected=etags.expected_versions(request),
                )
            except PortalError as error:
                add_problems(form, error.field_errors, error.sentence)
            else:
                messages.success(request, _("Purpose saved."))
                return redirect("service_accounts:account", slug, username)
    return render_account(request, account, form=form)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def token_create(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Create a token and show its secret once. A GET only shows the account."""
    account = selectors.service_account_by_name(request.user, slug, username)
    if request.method != "POST":
        return redirect("service_accounts:account", slug, username)
    _require_manage(request, account)
    form = ServiceTokenForm(request.POST)
    if form.is_valid():
        data = form.cleaned_data
        try:
            created = tokens.create_token(
                actor=request.user,
                user=account,
                name=data["name"],
                scopes=data["scopes"],
                expires_at=form.expires_at(),
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            return render_account(request, account, secret=created.secret)
    return render_account(request, account, token_form=form)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def token_rotate(request: SignedInRequest, slug: str, username: str, token_id: UUID) -> HttpResponse:
    """Rotate a token. A GET only shows the account."""
    account = selectors.service_account_by_name(request.user, slug, username)
    if request.method != "POST":
        return redirect("service_accounts:account", slug, username)
    _require_manage(request, account)
    form = RotateForm(request.POST)
    hours = int(form.cleaned_data["overlap"]) if form.is_valid() else 24
    try:
        created = tokens.rotate_token(actor=request.user, token_id=token_id, overlap_hours=hours)
    except PortalError as error:
        messages.error(request, error.sentence)
        return redirect("service_accounts:account", slug, username)
    return render_account(request, account, secret=created.secret)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def deactivate(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Ask for confirmation, then deactivate the account."""
    account = selectors.service_account_by_name(request.user, slug, username)
    require_manage_account(request.user, account)
    if request.method != "POST":
        return _render_question(request, account, "deactivate")
    reason = strip_nul(request.POST.get("note", "")).strip()[:200]
    deactivation.deactivate(actor=request.user, user=account, reason=reason)
    messages.success(request, _("%(username)s deactivated.") % {"username": username})
    return redirect("service_accounts:account", slug, username)


@require_http_methods(["GET", "HEAD", "POST"])
def reactivate(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Reactivate the account. A GET only shows it."""
    account = selectors.service_account_by_name(request.user, slug, username)
    if request.method == "POST":
        deactivation.reactivate(actor=request.user, user=account)
        messages.success(
            request, _("%(username)s reactivated. Create new tokens for it.") % {"username": username}
        )
    return redirect("service_accounts:account", slug, username)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def delete(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Ask for confirmation, then delete the account."""
    account = selectors.service_account_by_name(request.user, slug, username)
    require_manage_account(request.user, account)
    if request.method != "POST":
        return _render_question(request, account, "delete")
    try:
        users.delete(
            actor=request.user, user=account, delete_workspaces=request.POST.get("workspaces") == "delete"
        )
    except PortalError as error:
        messages.error(request, error.sentence)
        return redirect("service_accounts:account", slug, username)
    messages.success(request, _("%(username)s deleted.") % {"username": username})
    return redirect("service_accounts:list", slug)


def render_account(
    request: SignedInRequest, account: User, *, secret: str = "", **forms: Any
) -> HttpResponse:
    """Render the page of an account, with rejected forms and a secret to show once."""
    team = account.owning_team
    assert team is not None
    bound = [form for form in forms.values() if form is not None]
    sees = policies.may_see_credentials(request.user, team)
    tokens_shown = selectors.tokens_of(request.user, account) if sees else ApiToken.objects.none()
    tokens_shown = tokens_shown.order_by("-created_at", "id")
    context: dict[str, Any] = {
        "account": account,
        "team": team,
        "look": LOOKS[account.state],
        "may_manage": may_manage_team(request.user, team),
        "sees_credentials": sees,
        "page": Paginator(tokens_shown, ROWS_PER_PAGE).get_page(request.GET.get("page")),
        "secret": secret,
        "form": forms.get("form") or DescriptionForm(initial={"description": account.description}),
        "token_form": forms.get("token_form") or ServiceTokenForm(),
        "rotate_form": RotateForm(),
        "now": timezone.now(),
        "public_url": public_url(),
    }
    status = 400 if any(form_status(form) == 400 for form in bound) else 200
    return render(request, "service_accounts/account.html", context, status=status)


def _require_manage(request: SignedInRequest, account: User) -> None:
    assert account.owning_team is not None
    require_manage_team(request.user, account.owning_team)


def _render_question(request: SignedInRequest, account: User, action: str) -> HttpResponse:
    assert account.owning_team is not None
    back = reverse("service_accounts:account", args=[account.owning_team.slug, account.username])
    question = presenters.question(action, account)
    return render(request, "confirm.html", {**question, "action": request.path, "back": back})
