"""Pages of API tokens: one's own, and all for operators and auditors."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.common.errors import PortalError
from portal.common.htmx import local_path, public_url
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import policies, presenters, selectors
from portal.people.accounts import tokens as services
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.mfa.proof import require_fresh_proof
from portal.people.accounts.models import AccountKind, ApiTokenQuerySet
from portal.people.accounts.token_forms import TokenFilterForm, TokenForm

ROWS_PER_PAGE = 50


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def tokens(request: SignedInRequest) -> HttpResponse:
    """List the user's API tokens and create new ones. The secret of a new token is shown only once."""
    reading = request.user.is_auditor
    form = TokenForm(request.POST or None, reading=reading, scim=request.user.administers)
    secret = ""
    if request.method == "POST" and form.is_valid():
        try:
            created = services.create_token(
                actor=request.user,
                user=request.user,
                name=form.cleaned_data["name"],
                scopes=form.cleaned_data["scopes"],
                expires_at=form.expires_at(),
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.message)
        else:
            secret = created.secret
            form = TokenForm(reading=reading, scim=request.user.administers)
    context = {
        "form": form,
        "secret": secret,
        "tokens": selectors.tokens_of(request.user),
        "now": timezone.now(),
        "public_url": public_url(),
    }
    return render(request, "accounts/tokens.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def token_revoke(request: SignedInRequest, token_id: UUID) -> HttpResponse:
    """Ask for confirmation, then revoke the token. `next` is the list to return to."""
    data = request.POST if request.method == "POST" else request.GET
    back = local_path(data.get("next", ""), reverse("accounts:tokens"))
    if request.method == "POST":
        services.revoke_token(actor=request.user, token_id=token_id)
        messages.success(request, _("Token revoked. Programs can no longer use it."))
        return redirect(back)
    token = services.revocable_token(request.user, token_id)
    if token.revoked_at is not None:
        return redirect(back)
    question = presenters.revocation_question(request.user, token)
    context = {**question, "action": request.path, "hidden": {"next": back}, "back": back}
    return render(request, "confirm.html", context)


@require_safe
@never_cache
def site_tokens(request: SignedInRequest) -> HttpResponse:
    """List all tokens of the site, for operators and auditors."""
    policies.require_see_all(request.user)
    form = TokenFilterForm(request.GET)
    form.is_valid()
    filters = form.cleaned_data
    now = timezone.now()
    rows: ApiTokenQuerySet = selectors.tokens_for(request.user)
    if owner := strip_nul(filters.get("owner") or "").strip():
        rows = rows.filter(owner__username__icontains=owner)
    if team := filters.get("team"):
        rows = rows.filter(owner__memberships__team=team)
    if kind := filters.get("kind"):
        rows = rows.filter(owner__owning_team__isnull=kind == AccountKind.PERSON)
    if unused := filters.get("unused"):
        rows = selectors.tokens_unused_since(rows, now - timedelta(days=int(unused)))
    if expires := filters.get("expires"):
        rows = rows.ending_by(now + timedelta(days=int(expires)))
    context = {
        "page": Paginator(rows.order_by("-created_at", "id"), ROWS_PER_PAGE).get_page(
            request.GET.get("page")
        ),
        "form": form,
        "filtered": any(filters.values()),
        "owner_filter": owner,
        "may_revoke": request.user.operates,
        "now": now,
    }
    return render(request, "accounts/site_tokens.html", context)
