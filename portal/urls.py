"""URLs of the portal, which each app contributes."""

from __future__ import annotations

from django.urls import include, path

handler400 = "portal.common.views.bad_request"
handler500 = "portal.common.views.server_error"

urlpatterns = [
    # First, because programs request these most: each earlier prefix would be compared with their paths.
    path("api/", include("portal.api")),
    path("agent/v1/", include("portal.workspaces.agent_api")),
    path("nodes/v1/", include("portal.fleet.machines.node_api")),
    path("scim/", include("portal.people.scim.api")),
    path("", include("portal.embedded.urls")),
    path("", include("portal.web.home.urls")),
    path("", include("portal.web.workspace_list.urls")),
    path("", include("portal.people.accounts.urls")),
    path("", include("portal.people.accounts.library_urls")),
    path("", include("portal.people.identity.urls")),
    path("", include("portal.people.identity.library_urls")),
    path("", include("portal.web.documents.urls")),
    path("", include("portal.fleet.announcements.urls")),
    path("", include("portal.catalog.environments.urls")),
    path("", include("portal.common.events.urls")),
    path("", include("portal.web.fleet.urls")),
    path("", include("portal.gpu_checks.urls")),
    path("", include("portal.web.inbox.urls")),
    path("", include("portal.web.navigation.urls")),
    path("", include("portal.people.join_requests.urls")),
    path("", include("portal.quota.ledger.urls")),
    path("", include("portal.fleet.machines.urls")),
    path("", include("portal.workspaces.orphans.urls")),
    path("", include("portal.quota.requests.urls")),
    path("", include("portal.quota.limits.urls")),
    path("", include("portal.reclaim.urls")),
    path("", include("portal.reports.urls")),
    path("", include("portal.quota.reservations.urls")),
    path("", include("portal.scheduling.urls")),
    path("", include("portal.web.catalog.urls")),
    path("", include("portal.notify.channels.urls")),
    path("", include("portal.notify.webhooks.urls")),
    path("", include("portal.people.service_accounts.urls")),
    path("", include("portal.workspaces.secrets.urls")),
    path("", include("portal.catalog.repositories.urls")),
    path("", include("portal.workspaces.urls")),
    path("", include("portal.workspaces.home_files.urls")),
]
