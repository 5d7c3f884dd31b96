"""Charts of a device: a part of its page, or a separate page without JavaScript."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common.errors import NotFound
from portal.common.htmx import partial_of
from portal.common.reasons.reason import Reason
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import selectors, series
from portal.fleet.inventory.cordons import display_name
from portal.web.fleet.codes import MapCode
from portal.web.fleet.presenters import charts


@require_safe
@never_cache
def device_charts(request: SignedInRequest, device_id: UUID) -> HttpResponse:
    """Show charts of the last hour or the last 30 days: `?span=hour|month`."""
    device = selectors.devices().filter(pk=device_id).first()
    if device is None:
        raise NotFound(Reason(MapCode.DEVICE_NOT_ON_MAP))
    requested = request.GET.get("span", "")
    span = requested if requested in series.SPANS else series.HOUR
    now = timezone.now()
    device_series = series.device_series(device, span, now=now)
    begun = series.start_of(device_series)
    context = {
        "device": device,
        "name": display_name(device),
        "span": span,
        "charts": charts.device_charts(device, device_series, series.holders(device, begun, now)),
        "simulated": device.node.pool.simulated,
    }
    return render(request, partial_of(request, "fleet/charts.html", "charts"), context)
