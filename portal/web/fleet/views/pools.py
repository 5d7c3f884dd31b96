"""Pages of pools. All signed-in users may view them; templates are in templates/fleet/."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common import etags
from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import maintenance, selectors
from portal.fleet.inventory.models import CheckLevel
from portal.fleet.machines.policies import may_see as may_see_machines
from portal.gpu_checks import settings as check_settings
from portal.web.fleet.presenters import pools as presenters

NODES_PER_PAGE = 25


@require_safe
@never_cache
def pools(request: SignedInRequest) -> HttpResponse:
    """List all pools with their free capacity."""
    context = {"capacities": presenters.capacities(selectors.pools())}
    return render(request, partial_of(request, "fleet/pools.html", "pools"), context)


@require_safe
@never_cache
def pool(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show a pool with its nodes and devices."""
    pool = selectors.pool_by_slug(slug)
    page = Paginator(selectors.nodes().filter(pool=pool), NODES_PER_PAGE).get_page(request.GET.get("page"))
    rows, devices = presenters.node_rows(pool, list(page.object_list), timezone.now())
    context = {
        "pool": pool,
        "maintenance": maintenance.current(pool),
        "capacity": presenters.capacities([pool])[0],
        "page": page,
        "nodes": rows,
        "devices": presenters.device_rows(request.user, devices),
        "warnings": presenters.warnings_of(pool),
        "capabilities": [
            label for key, label in presenters.CAPABILITY_WORDS.items() if key in pool.capabilities
        ],
        "programs": presenters.programs_of(request.user, pool),
        "levels": CheckLevel.choices,
        "checks_version": etags.version_of(pool, *check_settings.values_of(pool)),
        "takes_machines": may_see_machines(request.user) and pool.runs_on_node,
    }
    return render(request, partial_of(request, "fleet/pool.html", "pool"), context)
