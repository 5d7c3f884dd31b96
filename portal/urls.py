"""All of the portal's URLs; each app names its own."""

from __future__ import annotations

from django.urls import include, path

handler400 = "portal.common.views.bad_request"
handler500 = "portal.common.views.server_error"

urlpatterns = [
    # First, as programs ask most: each prefix before them would be compared with their paths.
    path("api/", include("portal.api")),
    path("agent/v1/", include("portal.workspaces.agent_api")),
    path("nodes/v1/", include("portal.machines.node_api")),
    path("scim/", include("portal.scim.api")),
    path("", include("portal.embedded.urls")),
    path("", include("portal.home.urls")),
    path("", include("portal.accounts.urls")),
    path("", include("portal.accounts.library_urls")),
    path("", include("portal.identity.urls")),
    path("", include("portal.identity.library_urls")),
    path("", include("portal.documents.urls")),
    path("", include("portal.environments.urls")),
    path("", include("portal.events.urls")),
    path("", include("portal.fleet.urls")),
    path("", include("portal.gpu_checks.urls")),
    path("", include("portal.inbox.urls")),
    path("", include("portal.join_requests.urls")),
    path("", include("portal.ledger.urls")),
    path("", include("portal.machines.urls")),
    path("", include("portal.orphans.urls")),
    path("", include("portal.quota_requests.urls")),
    path("", include("portal.quotas.urls")),
    path("", include("portal.reclaim.urls")),
    path("", include("portal.reports.urls")),
    path("", include("portal.reservations.urls")),
    path("", include("portal.scheduling.urls")),
    path("", include("portal.catalog_pages.urls")),
    path("", include("portal.channels.urls")),
    path("", include("portal.webhooks.urls")),
    path("", include("portal.service_accounts.urls")),
    path("", include("portal.workspace_secrets.urls")),
    path("", include("portal.repositories.urls")),
    path("", include("portal.workspaces.urls")),
    path("", include("portal.home_files.urls")),
]
