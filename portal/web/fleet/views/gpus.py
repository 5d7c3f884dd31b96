"""Pages of GPUs: the map, a device, a node. All signed-in users may view them; operators may act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.common import etags
from portal.common.errors import NotFound, PortalError
from portal.common.htmx import local_path, partial_of
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import cordons, locations, selectors, services
from portal.fleet.inventory.models import Device, Node
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.policies import require_operator
from portal.scheduling import drains
from portal.web.fleet.codes import MapCode
from portal.web.fleet.forms import LocationForm
from portal.web.fleet.presenters import device as device_page
from portal.web.fleet.presenters import gpu_map
from portal.web.fleet.presenters import node as node_page
from portal.web.fleet.presenters.gpu_details import gpu_details
from portal.web.fleet.presenters.gpu_zoom import Filters
from portal.workspaces.homes import evacuation_presenters, evacuation_views, evacuations
from provisioning.types import DeviceKind

MAX_REASON_LENGTH = 200


@require_safe
@never_cache
def gpus(request: SignedInRequest) -> HttpResponse:
    """Show the GPU map, filtered by `pool`, `model`, `state`, `q`, `rack` and `node`, grouped `by`."""
    names = [field.name for field in fields(Filters)]
    filters = Filters(**{name: strip_nul(request.GET.get(name, ""))[:130] for name in names})
    page = gpu_map.gpu_map(request.user, filters, request.GET.get("page"), timezone.now())
    context = {"map": page, "page": page.page}
    return render(request, partial_of(request, "fleet/gpus.html", "gpus"), context)


@require_safe
def redirect_to_device(_request: SignedInRequest, pool: str, node: str, index: int) -> HttpResponse:
    """Redirect to the device with this index. Short URLs keep a map of 1,000 devices small."""
    places = Device.objects.filter(node__pool__slug=pool, node__name=node, index=index)
    device = places.order_by("kind", "-present").first()
    for candidate in places:
        if candidate.kind != DeviceKind.MIG and candidate.present:
            device = candidate
    if device is None:
        raise NotFound(Reason(MapCode.NO_DEVICE_AT_PLACE))
    return redirect("fleet:device", device.pk)


@require_safe
@never_cache
def gpu_card(request: SignedInRequest, pool: str, node: str, index: int) -> HttpResponse:
    """Show a GPU in a few lines, for a map cell under the pointer or with the focus."""
    rows = Node.objects.filter(pool__slug=pool, pool__enabled=True, name=node, retired=False)
    place = rows.select_related("pool").first()
    details = gpu_details(request.user, place, timezone.now(), index) if place is not None else ()
    if not details:
        raise NotFound(Reason(MapCode.NO_DEVICE_AT_PLACE))
    return render(request, "fleet/gpu_card.html", {"gpus": details})


def _device(device_id: UUID) -> Device:
    device = selectors.devices_with_state().filter(pk=device_id).first()
    if device is None:
        raise NotFound(Reason(MapCode.DEVICE_NOT_ON_MAP))
    return device


def node_by_id(node_id: UUID) -> Node:
    """Return the node with its pool. Raises `NotFound`."""
    node = Node.objects.select_related("pool").filter(pk=node_id).first()
    if node is None:
        raise NotFound(Reason(MapCode.NODE_NOT_ON_MAP))
    return node


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def device(request: SignedInRequest, device_id: UUID) -> HttpResponse:
    """Show a device. A POST with `do` cordons it or returns it to service."""
    device = _device(device_id)
    if request.method == "POST":
        return _cordon_device(request, device)
    view = device_page.device_page(request.user, device, timezone.now())
    context = {"view": view, "device": device, "checks": view.checks}
    return render(request, partial_of(request, "fleet/device.html", "live"), context)


def _reason(request: SignedInRequest) -> str:
    return strip_nul(request.POST.get("note", "")).strip()[:MAX_REASON_LENGTH]


def _cordon_device(request: SignedInRequest, device: Device) -> HttpResponse:
    name = cordons.display_name(device)
    if request.POST.get("do") == "uncordon":
        cordons.lift_cordon(actor=request.user, device_id=device.pk, reason=_reason(request))
        messages.success(request, _("%(name)s returned to service.") % {"name": name})
    else:
        cordons.cordon_device(actor=request.user, device_id=device.pk, reason=_reason(request))
        messages.success(request, _("%(name)s cordoned. Running work continues.") % {"name": name})
    return redirect(local_path(request.POST.get("next", ""), reverse("fleet:device", args=[device.pk])))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def node(request: SignedInRequest, node_id: UUID) -> HttpResponse:
    """Show a node. A POST with `do` cordons it or returns it to service."""
    node = node_by_id(node_id)
    if request.method == "POST":
        cordoned = request.POST.get("do") != "uncordon"
        services.set_cordon(actor=request.user, node_id=node.pk, cordoned=cordoned, reason=_reason(request))
        done = _("%(name)s returned to service.")
        if cordoned:
            done = _("%(name)s cordoned. Running work continues.")
        messages.success(request, done % {"name": node.name})
        return redirect(local_path(request.POST.get("next", ""), reverse("fleet:node", args=[node.pk])))
    context = {"view": node_page.node_page(request.user, node, timezone.now()), "node": node}
    return render(request, partial_of(request, "fleet/node.html", "live"), context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def location(request: SignedInRequest, node_id: UUID) -> HttpResponse:
    """Show and handle the form of a node's rack and block."""
    require_operator(request.user)
    node = node_by_id(node_id)
    back = reverse("fleet:node", args=[node.pk])
    initial = {**locations.document_of(node), "version": etags.version_of(node)}
    form = LocationForm(request.POST if request.method == "POST" else None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            locations.set_location(
                actor=request.user,
                node_id=node.pk,
                labels=form.labels(),
                expected=etags.expected_versions(request),
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("Location of %(name)s saved.") % {"name": node.name})
            return redirect(back)
    context = {"form": form, "node": node, "back": back}
    return render(request, "fleet/node_location.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def drain_device(request: SignedInRequest, device_id: UUID) -> HttpResponse:
    """Confirm, then drain a device. Its workspaces are preempted with notice."""
    device = _device(device_id)
    where = reverse("fleet:device", args=[device.pk])
    return _drain(request, cordons.display_name(device), where, lambda reason: drains.drain_device(
        actor=request.user, device_id=device.pk, reason=reason
    ))  # fmt: skip


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def drain_node(request: SignedInRequest, node_id: UUID) -> HttpResponse:
    """Confirm, then drain a node. Its workspaces are preempted with notice."""
    node = node_by_id(node_id)
    where = reverse("fleet:node", args=[node.pk])
    require_operator(request.user)
    to = strip_nul(request.POST.get("homes_to", ""))
    if to:
        where = reverse("workspaces:node-homes", args=[node.pk])

    def drain(reason: str) -> drains.Drain:
        done = drains.drain_node(actor=request.user, node_id=node.pk, reason=reason)
        if to:
            evacuation_views.begin(request, node.pk, to)
        return done

    return _drain(request, node.name, where, drain, pick=_home_target_choice(request, node))


def _home_target_choice(request: SignedInRequest, node: Node) -> dict[str, Any] | None:
    """Return the choice of target nodes for homes when a node is drained, or `None`."""
    if request.method == "POST":
        return None
    homes = evacuations.homes_on_node(request.user, node)
    if homes.refused is not None:
        return None
    return {
        "name": "homes_to",
        "label": _("Move home folders to"),
        "none": _("Do not move"),
        "options": homes.targets,
        "hint": _(
            "%(homes)s. If not moved, new workspaces of their users wait until %(node)s returns to service."
        )
        % {"homes": evacuation_presenters.homes_text(homes), "node": node.name},
    }


def _drain(
    request: SignedInRequest,
    name: str,
    where: str,
    drain: Callable[[str], drains.Drain],
    *,
    pick: dict[str, Any] | None = None,
) -> HttpResponse:
    require_operator(request.user)
    if request.method == "POST":
        messages.success(request, str(drain(_reason(request))))
        return redirect(where)
    context = {
        "title": _("Drain %(name)s?") % {"name": name},
        "loses": [
            _("running workspaces, which stop after a notice and restart elsewhere"),
            _("kernels, terminals and everything in memory"),
        ],
        "stays": [_("home folders with all their files"), _("queue positions")],
        "note": _("Visible to users of these workspaces until the return to service."),
        "pick": pick,
        "action": request.path,
        "yes": _("Drain %(name)s") % {"name": name},
        "back": where,
    }
    return render(request, "confirm.html", context)
