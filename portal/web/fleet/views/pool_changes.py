"""Pages that add, change, retire and delete pools, for operators."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common import etags
from portal.common.errors import PortalError
from portal.common.history import selectors as history
from portal.common.history.models import SubjectKind
from portal.common.reasons.wording import sentence_of
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import pools, selectors, services
from portal.fleet.inventory.models import Allocation
from portal.fleet.machines.readiness import missing_requirements
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.policies import require_operator
from portal.web.fleet.forms import PoolForm, config_text

VERSIONS_SHOWN = 20


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def new(request: SignedInRequest) -> HttpResponse:
    """Show and handle the form of a new pool."""
    require_operator(request.user)
    form = PoolForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            pool = services.create_pool(actor=request.user, **form.service_arguments())
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(
                request, _("%(name)s created. Waiting for its first report.") % {"name": pool.name}
            )
            return redirect("fleet:pool", pool.slug)
    context = {"form": form, "back": reverse("fleet:pools")}
    return render(request, "fleet/pool_form.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def edit(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show and handle the form that changes a pool, with its missing settings and versions."""
    require_operator(request.user)
    pool = selectors.pool_by_slug(slug)
    initial = {
        "name": pool.name,
        "placement_policy": pool.placement_policy,
        "rebalancing": pool.rebalancing,
        "config": config_text(pool.config),
        "version": etags.version_of(pool),
    }
    form = PoolForm(request.POST if request.method == "POST" else None, initial=initial, changing=True)
    if request.method == "POST" and form.is_valid():
        try:
            pools.change(
                actor=request.user,
                pool=pool,
                fields=form.service_arguments(),
                expected=etags.expected_versions(request),
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("%(name)s saved.") % {"name": pool.name})
            return redirect("fleet:pool", slug)
    revisions = list(history.revisions(SubjectKind.POOL, pool.pk)[: VERSIONS_SHOWN + 1])
    context = {
        "form": form,
        "pool": pool,
        "missing": [sentence_of(field) for field in missing_requirements(pool)],
        "versions": history.revisions_with_changes(revisions)[:VERSIONS_SHOWN],
        "back": reverse("fleet:pool", args=[slug]),
    }
    return render(request, "fleet/pool_form.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def retire(request: SignedInRequest, slug: str) -> HttpResponse:
    """Retire a pool, or return it to service. A GET redirects to the pool's form."""
    require_operator(request.user)
    pool = selectors.pool_by_slug(slug)
    if request.method == "POST":
        retiring = request.POST.get("retiring") == "1"
        pools.change(actor=request.user, pool=pool, fields={"retiring": retiring})
        text = (
            _("Pool retired. No new workspaces start there.") if retiring else _("Pool returned to service.")
        )
        messages.success(request, text)
    return redirect("fleet:edit-pool", slug)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def restore(request: SignedInRequest, slug: str, number: int) -> HttpResponse:
    """Restore a version of a pool. A GET redirects to the pool's form."""
    require_operator(request.user)
    pool = selectors.pool_by_slug(slug)
    if request.method == "POST":
        try:
            pools.restore(actor=request.user, pool=pool, number=number)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Version %(number)s restored.") % {"number": number})
    return redirect("fleet:edit-pool", slug)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, slug: str) -> HttpResponse:
    """Confirm, then delete a pool."""
    require_operator(request.user)
    pool = selectors.pool_by_slug(slug)
    if request.method == "POST":
        try:
            pools.delete(actor=request.user, pool=pool)
        except PortalError as error:
            messages.error(request, error.sentence)
            return redirect("fleet:edit-pool", slug)
        messages.success(request, _("%(name)s deleted.") % {"name": pool.name})
        return redirect("fleet:pools")
    context: dict[str, Any] = {
        "title": _("Delete the pool %(name)s?") % {"name": pool.name},
        "loses": [_("its nodes and devices"), *_flavors(pool)],
        "stays": [_("home folders on its nodes"), _("audit log entries")],
        "yes": _("Delete"),
        "action": request.path,
        "back": reverse("fleet:edit-pool", args=[slug]),
        "refusals": _refusals(pool),
    }
    return render(request, "confirm.html", context)


def _flavors(pool: Any) -> list[str]:
    names = list(pool.flavors.filter(deleted_at=None).order_by("name").values_list("name", flat=True)[:20])
    return [_("flavors of this pool only: %(names)s") % {"names": ", ".join(names)}] if names else []


def _refusals(pool: Any) -> list[str]:
    if not pool.retiring:
        return [_("The pool still takes new workspaces. Retire it first.")]
    if Allocation.objects.filter(node__pool=pool, released_at=None).exists():
        return [_("Workspaces are still placed there. Wait until they have ended.")]
    return []
