"""Pages of machines. See templates/machines/ for the contexts."""

from __future__ import annotations

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
from portal.common.htmx import partial_of
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import selectors as inventory
from portal.fleet.machines import presenters, selectors, services
from portal.fleet.machines.tokens import NewJoinToken
from portal.people.accounts.mfa.proof import require_fresh_proof
from portal.people.accounts.policies import require_operator

ROWS_PER_PAGE = 50


@require_safe
@never_cache
def listing(request: SignedInRequest, slug: str) -> HttpResponse:
    """List the machines of a pool and its unused join tokens."""
    return _render_list(request, slug)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def token_create(request: SignedInRequest, slug: str) -> HttpResponse:
    """Create a join token and show its command once. A GET only shows the list."""
    pool = inventory.pool_by_slug(slug)
    require_operator(request.user)
    if request.method != "POST":
        return redirect("machines:list", slug)
    try:
        created = services.make_join_token(actor=request.user, pool=pool)
    except PortalError as error:
        messages.error(request, error.sentence)
        return redirect("machines:list", slug)
    return _render_list(request, slug, created=created)


@require_http_methods(["GET", "HEAD", "POST"])
def token_revoke(request: SignedInRequest, slug: str, join_token_id: UUID) -> HttpResponse:
    """Revoke a join token. A GET only shows the list."""
    pool = inventory.pool_by_slug(slug)
    require_operator(request.user)
    if request.method == "POST":
        services.revoke_join_token(actor=request.user, pool=pool, token_id=join_token_id)
        messages.success(request, _("Token revoked."))
    return redirect("machines:list", slug)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def revoke(request: SignedInRequest, machine_id: UUID) -> HttpResponse:
    """Ask for confirmation, then revoke the machine."""
    require_operator(request.user)
    machine = selectors.machine(request.user, machine_id)
    back = reverse("machines:list", args=[machine.pool.slug])
    if request.method != "POST":
        question = presenters.revoke_question(machine)
        return render(request, "confirm.html", {**question, "action": request.path, "back": back})
    reason = strip_nul(request.POST.get("note", ""))
    services.revoke(actor=request.user, machine_id=machine.pk, reason=reason)
    messages.success(request, _("%(node)s revoked.") % {"node": machine.name})
    return redirect(back)


def _render_list(request: SignedInRequest, slug: str, *, created: NewJoinToken | None = None) -> HttpResponse:
    """Render the list, with the command of a new token."""
    pool = inventory.pool_by_slug(slug)
    machines = selectors.machines(request.user).filter(pool=pool)
    page = Paginator(machines, ROWS_PER_PAGE).get_page(request.GET.get("page"))
    refused = services.may_join(pool)
    context = {
        "pool": pool,
        "page": page,
        "rows": presenters.rows(page.object_list, timezone.now()),
        "tokens": selectors.waiting_tokens(request.user, pool)[:ROWS_PER_PAGE],
        "refused": sentence_of(refused) if refused else "",
        "may": request.user.operates,
        "command": presenters.command_of(created.text) if created else "",
        "expires_at": created.token.expires_at if created else None,
        "live_url": reverse("machines:list", args=[slug]),
    }
    return render(request, partial_of(request, "machines/list.html", "live"), context)
