"""URLs of the gateway process: event streams, which `portal.embedded.proxy` routes there.

All of them are also in `portal.urls`; `tests/embedded/test_streams.py` keeps the three lists consistent.
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

# As spelled by the routers, without the optional trailing slash. The list of events is included because it
# streams if only `text/event-stream` is accepted.
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
def not_found(request: HttpRequest, **_kwargs: object) -> JsonResponse:
    """Return 404 as plain JSON: this process renders no pages."""
    return plain_response(404, "not_found", "This process serves event streams only.", request)


handler400 = "portal.common.views.bad_request"
handler404 = "portal.stream_urls.not_found"
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
