"""The URLs of the gateway process: event streams, which `portal.embedded.proxy` sends there.

All of them are among those of `portal.urls` too; `tests/embedded/test_streams.py` holds the three lists
together.
"""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, JsonResponse
from django.urls import include, path

from portal.catalog.environments import api as environments
from portal.common.problems import plain_response
from portal.embedded.views import live
from portal.gpu_checks import api as gpu_checks
from portal.web.event_feed import api as event_feed
from portal.workspaces import api as workspaces
from portal.workspaces import event_api as workspace_events
from portal.workspaces.stream_urls import urlpatterns as page_streams

# As the routers spell them, without the slash that each may have at its end. The list of events is here
# because it answers as a stream to who accepts nothing else.
API_STREAMS = frozenset(
    {
        "workspaces/<uuid:workspace_id>/events",
        "workspaces/<uuid:workspace_id>/events/stream",
        "workspaces/<uuid:workspace_id>/logs/stream",
        "gpu-checks/<uuid:check_id>/stream",
        "environments/<slug:slug>/builds/<uuid:build_id>/stream",
        "events/stream",
    }
)


@login_not_required
def unknown(request: HttpRequest, **_kwargs: object) -> JsonResponse:
    """404 without a page: this process renders none."""
    return plain_response(404, "not_found", "This process serves event streams only.", request)


handler400 = "portal.common.views.bad_request"
handler404 = "portal.stream_urls.unknown"
urlpatterns = [
    path("healthz/live", live),
    path("", include(page_streams)),
    path(
        "api/v1/",
        include(
            [
                url
                for room in (workspaces, workspace_events, gpu_checks, environments, event_feed)
                for url in room.router.urls
                if str(url.pattern).rstrip("/") in API_STREAMS
            ]
        ),
    ),
]
