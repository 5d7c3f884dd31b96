"""Plots of pools, nodes and devices: a part of their pages, or separate pages without JavaScript."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.errors import NotFound
from portal.common.htmx import partial_of
from portal.common.reasons.reason import Reason
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import selectors, series, use_plots
from portal.fleet.inventory.cordons import display_name
from portal.web.fleet.codes import MapCode
from portal.web.fleet.presenters import device_plots
from portal.web.fleet.presenters import use as presenters
from portal.web.fleet.views.gpus import node_by_id


@require_safe
@never_cache
def pool_use(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show plots of a pool: states, utilisation and memory use of its GPUs. `?span=week|month`."""
    pool = selectors.pool_by_slug(slug)
    span = use_plots.span_of(request.GET.get("span", ""))
    context = use_plots.page_context(
        presenters.pool_plots(pool, span, timezone.now()),
        name=pool.name,
        url=reverse("fleet:pool", args=[pool.slug]),
        here=reverse("fleet:pool-use", args=[pool.slug]),
        simulated=pool.simulated,
        span=span,
    )
    return _page(request, context)


@require_safe
@never_cache
def node_use(request: SignedInRequest, node_id: UUID) -> HttpResponse:
    """Show plots of a node: allocated GPUs, utilisation and memory. `?span=week|month`."""
    node = node_by_id(node_id)
    span = use_plots.span_of(request.GET.get("span", ""))
    context = use_plots.page_context(
        presenters.node_plots(node, span, timezone.now()),
        name=node.name,
        url=reverse("fleet:node", args=[node.pk]),
        here=reverse("fleet:node-use", args=[node.pk]),
        simulated=node.pool.simulated,
        span=span,
    )
    return _page(request, context)


@require_safe
@never_cache
def device_use(request: SignedInRequest, device_id: UUID) -> HttpResponse:
    """Show plots of a device for the last hour or the last 30 days: `?span=hour|month`."""
    device = selectors.devices().filter(pk=device_id).first()
    if device is None:
        raise NotFound(Reason(MapCode.DEVICE_NOT_ON_MAP))
    requested = request.GET.get("span", "")
    span = requested if requested in series.SPANS else series.HOUR
    context = use_plots.page_context(
        device_plots.use_of(device, span, timezone.now()),
        name=display_name(device),
        url=reverse("fleet:device", args=[device.pk]),
        here=reverse("fleet:device-use", args=[device.pk]),
        simulated=device.node.pool.simulated,
        span=span,
        spans=device_plots.SPAN_TEXTS,
        every_s=30 if span == series.HOUR else 300,
    )
    return _page(request, context)


def _page(request: SignedInRequest, context: dict[str, Any]) -> HttpResponse:
    return render(request, partial_of(request, "components/use_page.html", "plots"), context)
