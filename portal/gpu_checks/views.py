"""Pages of GPU checks. All signed-in users may view them; operators may request checks."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from portal.common import etags
from portal.common.errors import InvalidInput, PreconditionFailed, StateConflict
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory.models import CheckLevel
from portal.gpu_checks import joint, pairs, presenters, reset_presenters, resets, runs, selectors, settings
from portal.gpu_checks.kinds.proofs import PROOFS, proof_of
from portal.gpu_checks.models import CheckKind
from portal.people.accounts.policies import require_operator


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def device_checks(request: SignedInRequest, device_id: UUID) -> HttpResponse:
    """Show the checks of a device as a part of its page. A POST requests a check and redirects to it."""
    device = selectors.device_by_name(str(device_id))
    if request.method == "POST":
        kind = request.POST.get("kind")
        proof = proof_of(kind if kind in PROOFS else CheckKind.CHECK)
        level = strip_nul(request.POST.get("level", CheckLevel.QUICK))
        run = proof.request(actor=request.user, device_id=device.pk, level=level)
        return redirect("gpu_checks:check", run.pk)
    if not getattr(request, "htmx", False):
        return redirect("fleet:device", device.pk)
    context = {"device": device, "checks": presenters.block(request.user, device)}
    return render(request, "gpu_checks/checks_block.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def reset(request: SignedInRequest, device_id: UUID) -> HttpResponse:
    """Show everything that a reset or a reboot would interrupt, then request the reset."""
    require_operator(request.user)
    device = selectors.device_by_name(str(device_id))
    if request.method == "POST":
        try:
            run = resets.request_reset(
                actor=request.user, device_id=device.pk, expected=etags.expected_versions(request)
            )
        except (StateConflict, PreconditionFailed) as error:
            messages.error(request, error.sentence)
            return redirect("gpu_checks:reset", device.pk)
        return redirect("gpu_checks:check", run.pk)
    return render(
        request, "gpu_checks/reset.html", reset_presenters.question(request.user, device, request.path)
    )


@require_POST
def node_link(request: SignedInRequest, node_id: UUID) -> HttpResponse:
    """Request a link check of a node, and redirect to the run at its end."""
    require_operator(request.user)
    try:
        run = pairs.request_link_check(
            actor=request.user, node_id=node_id, with_node_id=UUID(request.POST.get("with_node", ""))
        )
    except ValueError:
        messages.error(request, _("Choose the other node."))
    except StateConflict as error:
        messages.error(request, error.sentence)
    else:
        return redirect("gpu_checks:check", run.pk)
    return redirect("fleet:node", node_id)


@require_POST
def node_joint(request: SignedInRequest, node_id: UUID) -> HttpResponse:
    """Request a check of all GPUs of a node at once, and redirect to its run."""
    require_operator(request.user)
    try:
        run = joint.request_joint_check(actor=request.user, node_id=node_id)
    except StateConflict as error:
        messages.error(request, error.sentence)
        return redirect("fleet:node", node_id)
    return redirect("gpu_checks:check", run.pk)


@require_POST
def pool_checks(request: SignedInRequest, slug: str) -> HttpResponse:
    """Set when a pool's devices are checked."""
    require_operator(request.user)
    try:
        settings.set_checks(
            actor=request.user,
            slug=slug,
            expected=etags.expected_versions(request),
            **settings.from_form(request.POST),
        )
    except (InvalidInput, PreconditionFailed) as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("Check settings saved."))
    return redirect("fleet:pool", slug)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def check(request: SignedInRequest, check_id: UUID) -> HttpResponse:
    """Show one run, live while it is open. A POST cancels a run that has not begun."""
    run = selectors.check_by_id(check_id)
    if request.method == "POST":
        runs.cancel_check(actor=request.user, run_id=run.pk)
        messages.success(request, _("Cancelled before it started."))
        return redirect("gpu_checks:check", run.pk)
    context = {"run": run, "check": presenters.page(request.user, run)}
    return render(request, "gpu_checks/check.html", context)
