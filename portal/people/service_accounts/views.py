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
from portal.people.accounts.mfa.proof import stepped_up
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
                made = service_accounts.create(actor=request.user, team=team, **form.cleaned_data)
            except PortalError as error:
                add_problems(form, error.field_errors, error.sentence)
            else:
                messages.success(
                    request, _("%(username)s created. Create a token for it.") % {"username": made.username}
                )
                return redirect("service_accounts:account", slug, made.username)
    context = {
        "team": team,
        "page": Paginator(selectors.of_team(team), ROWS_PER_PAGE).get_page(request.GET.get("page")),
        "form": form,
        "looks": LOOKS,
        "may_manage": may_manage_team(request.user, team),
    }
    return render(request, "service_accounts/list.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def account(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Show a service account with its tokens, and change its description."""
    found = selectors.by_name(request.user, slug, username)
    form = None
    if request.method == "POST":
        _require_manage(request, found)
        form = DescriptionForm(request.POST)
        if form.is_valid():
            try:
                service_accounts.describe(
                    actor=request.user,
                    user=found,
                    description=form.cleaned_data["description"],
                    expected=etags.expected_by(request),
                )
            except PortalError as error:
                add_problems(form, error.field_errors, error.sentence)
            else:
                messages.success(request, _("Purpose saved."))
                return redirect("service_accounts:account", slug, username)
    return shown(request, found, form=form)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@stepped_up
def token_create(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Create a token and show its secret once. A GET only shows the account."""
    found = selectors.by_name(request.user, slug, username)
    if request.method != "POST":
        return redirect("service_accounts:account", slug, username)
    _require_manage(request, found)
    form = ServiceTokenForm(request.POST)
    if form.is_valid():
        given = form.cleaned_data
        try:
            made = tokens.create_token(
                actor=request.user,
                user=found,
                name=given["name"],
                scopes=given["scopes"],
                expires_at=form.expires_at(),
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            return shown(request, found, secret=made.secret)
    return shown(request, found, token_form=form)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@stepped_up
def token_rotate(request: SignedInRequest, slug: str, username: str, token_id: UUID) -> HttpResponse:
    """Rotate a token. A GET only shows the account."""
    found = selectors.by_name(request.user, slug, username)
    if request.method != "POST":
        return redirect("service_accounts:account", slug, username)
    _require_manage(request, found)
    form = RotateForm(request.POST)
    hours = int(form.cleaned_data["overlap"]) if form.is_valid() else 24
    try:
        made = tokens.rotate_token(actor=request.user, token_id=token_id, overlap_hours=hours)
    except PortalError as error:
        messages.error(request, error.sentence)
        return redirect("service_accounts:account", slug, username)
    return shown(request, found, secret=made.secret)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def deactivate(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Ask for confirmation, then deactivate the account."""
    found = selectors.by_name(request.user, slug, username)
    require_manage_account(request.user, found)
    if request.method != "POST":
        return _asked(request, found, "deactivate")
    reason = strip_nul(request.POST.get("note", "")).strip()[:200]
    deactivation.deactivate(actor=request.user, user=found, reason=reason)
    messages.success(request, _("%(username)s deactivated.") % {"username": username})
    return redirect("service_accounts:account", slug, username)


@require_http_methods(["GET", "HEAD", "POST"])
def reactivate(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Reactivate the account. A GET only shows it."""
    found = selectors.by_name(request.user, slug, username)
    if request.method == "POST":
        deactivation.reactivate(actor=request.user, user=found)
        messages.success(
            request, _("%(username)s reactivated. Create new tokens for it.") % {"username": username}
        )
    return redirect("service_accounts:account", slug, username)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@stepped_up
def delete(request: SignedInRequest, slug: str, username: str) -> HttpResponse:
    """Ask for confirmation, then delete the account."""
    found = selectors.by_name(request.user, slug, username)
    require_manage_account(request.user, found)
    if request.method != "POST":
        return _asked(request, found, "delete")
    try:
        users.delete(
            actor=request.user, user=found, delete_workspaces=request.POST.get("workspaces") == "delete"
        )
    except PortalError as error:
        messages.error(request, error.sentence)
        return redirect("service_accounts:account", slug, username)
    messages.success(request, _("%(username)s deleted.") % {"username": username})
    return redirect("service_accounts:list", slug)


def shown(request: SignedInRequest, found: User, *, secret: str = "", **forms: Any) -> HttpResponse:
    """Render the page of an account, with rejected forms and a secret to show once."""
    team = found.owning_team
    assert team is not None
    bound = [form for form in forms.values() if form is not None]
    sees = policies.may_see_credentials(request.user, team)
    listed = selectors.tokens_of(request.user, found) if sees else ApiToken.objects.none()
    context: dict[str, Any] = {
        "account": found,
        "team": team,
        "look": LOOKS[found.state],
        "may_manage": may_manage_team(request.user, team),
        "sees_credentials": sees,
        "page": Paginator(listed, ROWS_PER_PAGE).get_page(request.GET.get("page")),
        "secret": secret,
        "form": forms.get("form") or DescriptionForm(initial={"description": found.description}),
        "token_form": forms.get("token_form") or ServiceTokenForm(),
        "rotate_form": RotateForm(),
        "now": timezone.now(),
        "public_url": public_url(),
    }
    status = 400 if any(form_status(form) == 400 for form in bound) else 200
    return render(request, "service_accounts/account.html", context, status=status)


def _require_manage(request: SignedInRequest, found: User) -> None:
    assert found.owning_team is not None
    require_manage_team(request.user, found.owning_team)


def _asked(request: SignedInRequest, found: User, action: str) -> HttpResponse:
    assert found.owning_team is not None
    back = reverse("service_accounts:account", args=[found.owning_team.slug, found.username])
    asked = presenters.question(action, found)
    return render(request, "confirm.html", {**asked, "action": request.path, "back": back})
