"""Plots of the use of a pool or a node: a part of its page, or a separate page without JavaScript."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Sum
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.errors import NotFound
from portal.common.htmx import partial_of
from portal.common.reasons.reason import Reason
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import counting, selectors, use_history, use_plots
from portal.fleet.inventory.device_states import KNOWN
from portal.fleet.inventory.models import AllocatedDevice, Device, Node
from portal.reports import state_samples
from portal.web.fleet.codes import MapCode
from portal.web.fleet.presenters import state_plot
from provisioning.types import DeviceKind

PAGE = "components/use_page.html"


@require_safe
@never_cache
def pool_use(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show plots of a pool: states, utilisation and memory of its GPUs. `?span=week|month`."""
    pool = selectors.pool_by_slug(slug)
    span, now = use_plots.span_of(request.GET.get("span", "")), timezone.now()
    window = use_history.window(span, now)
    devices = Device.objects.filter(KNOWN, node__pool=pool, node__retired=False)
    history = state_samples.history([pool.pk], days=use_history.DAYS[span], now=now)
    found = use_plots.use_plots(
        state_plot.plot_of(history),
        use_history.measured_use(devices, window),
        window,
        total_mib=_memory_of(devices),
        simulated=pool.simulated,
    )
    context = use_plots.page_context(
        found,
        name=pool.name,
        url=reverse("fleet:pool", args=[pool.slug]),
        here=reverse("fleet:pool-use", args=[pool.slug]),
        simulated=pool.simulated,
    )
    if not history.recorded:
        note = _("States of GPUs were not recorded in this period. The portal records them every 15 minutes.")
        context["notes"] = (note, *found.notes)
    return _page(request, context, span)


@require_safe
@never_cache
def node_use(request: SignedInRequest, node_id: UUID) -> HttpResponse:
    """Show plots of a node: allocated GPUs, utilisation and memory. `?span=week|month`."""
    node = Node.objects.select_related("pool").filter(pk=node_id).first()
    if node is None:
        raise NotFound(Reason(MapCode.NODE_NOT_ON_MAP))
    span = use_plots.span_of(request.GET.get("span", ""))
    window = use_history.window(span, timezone.now())
    devices = Device.objects.filter(KNOWN, node=node)
    countable = counting.devices(Node.objects.filter(pk=node.pk))
    allocated = use_history.allocated(AllocatedDevice.objects.filter(device__node=node), window)
    found = use_plots.use_plots(
        use_plots.allocated_plot(allocated, window, devices=len(countable)),
        use_history.measured_use(devices, window),
        window,
        total_mib=_memory_of(devices),
        simulated=node.pool.simulated,
    )
    context = use_plots.page_context(
        found,
        name=node.name,
        url=reverse("fleet:node", args=[node.pk]),
        here=reverse("fleet:node-use", args=[node.pk]),
        simulated=node.pool.simulated,
    )
    return _page(request, context, span)


def _memory_of(devices: Any) -> int:
    """Return the memory of these GPUs in MiB."""
    total = devices.filter(kind=DeviceKind.GPU.value).aggregate(total=Sum("memory_mib"))["total"]
    return total or 0


def _page(request: SignedInRequest, context: dict[str, Any], span: str) -> HttpResponse:
    context |= {"span": span, "spans": use_plots.SPAN_TEXTS}
    return render(request, partial_of(request, PAGE, "charts"), context)
