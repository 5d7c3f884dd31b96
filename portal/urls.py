"""All of the portal's URLs; each app names its own."""

from __future__ import annotations

from django.urls import include, path

handler500 = "portal.common.views.server_error"

urlpatterns = [
    path("", include("portal.embedded.urls")),
    path("", include("portal.accounts.urls")),
    path("", include("portal.events.urls")),
    path("", include("portal.inventory.urls")),
    path("", include("portal.quotas.urls")),
    path("", include("portal.reports.urls")),
    path("", include("portal.workspaces.urls")),
    path("api/", include("portal.api")),
    path("agent/v1/", include("portal.workspaces.agent_api")),
]
