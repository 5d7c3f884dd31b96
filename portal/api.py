"""All of the REST API: each app names its own endpoints; the page of its documentation is here."""

from __future__ import annotations

from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularSwaggerSplitView

from portal.accounts import api as accounts
from portal.accounts import token_api as tokens
from portal.accounts import user_api as users
from portal.catalog import api as catalog
from portal.catalog_pages import preview_api as catalog_previews
from portal.channels import api as channels
from portal.common.api import routes, unknown_endpoint
from portal.environments import api as environments
from portal.event_feed import api as event_feed
from portal.events import api as events
from portal.events import audit_api as audit
from portal.gpu_checks import api as gpu_checks
from portal.home_files import api as home_files
from portal.home_files import archive_api as home_archives
from portal.identity import api as identity
from portal.inbox import api as inbox
from portal.inventory import api as inventory
from portal.inventory import sample_api as samples
from portal.join_requests import api as join_requests
from portal.ledger import api as ledger
from portal.ledger import budget_api as budgets
from portal.machines import api as machines
from portal.openapi import api as version
from portal.openapi.served import SchemaView
from portal.orphans import api as orphans
from portal.quota_requests import api as quota_requests
from portal.quotas.api import limits, site
from portal.reclaim import api as reclaim
from portal.reclaim import home_api as reclaimed_homes
from portal.reclaim import policy_api as reclaim_policies
from portal.reclaim.rebalancing import api as rebalancing
from portal.reports import api as reports
from portal.repositories import api as repositories
from portal.reservations import api as reservations
from portal.scheduling import api as scheduling
from portal.scheduling import drain_api as drains
from portal.service_accounts import api as service_accounts
from portal.service_accounts import rule_api as trust_rules
from portal.site_file import api as site_file
from portal.webhooks import api as webhooks
from portal.workspace_secrets import api as secrets
from portal.workspaces import api as workspaces
from portal.workspaces import bulk_api as bulk
from portal.workspaces import package_api as packages
from portal.workspaces.homes import api as homes
from portal.workspaces.homes import evacuation_api as evacuations
from portal.workspaces.homes import move_api as home_moves


class Docs(SpectacularSwaggerSplitView):
    """The document for people: no inline code, nothing from other hosts."""

    schema = None
    url_name = "api:schema"
    template_name = "api/docs.html"


app_name = "api"
v1 = [
    *workspaces.urlpatterns,
    *bulk.urlpatterns,
    *packages.urlpatterns,
    *homes.urlpatterns,
    *home_moves.urlpatterns,
    *evacuations.urlpatterns,
    *reclaim.urlpatterns,
    *reclaim_policies.urlpatterns,
    *reclaimed_homes.urlpatterns,
    *rebalancing.urlpatterns,
    *home_files.urlpatterns,
    *home_archives.urlpatterns,
    *catalog.urlpatterns,
    *environments.urlpatterns,
    *catalog_previews.urlpatterns,
    *accounts.urlpatterns,
    *repositories.urlpatterns,
    *tokens.urlpatterns,
    *users.urlpatterns,
    *identity.urlpatterns,
    *service_accounts.urlpatterns,
    *trust_rules.urlpatterns,
    *join_requests.urlpatterns,
    *inventory.urlpatterns,
    *samples.urlpatterns,
    *reports.urlpatterns,
    *machines.urlpatterns,
    *orphans.urlpatterns,
    *drains.urlpatterns,
    *gpu_checks.urlpatterns,
    *events.urlpatterns,
    *audit.urlpatterns,
    *event_feed.urlpatterns,
    *webhooks.urlpatterns,
    *channels.urlpatterns,
    *secrets.urlpatterns,
    *scheduling.urlpatterns,
    *limits.urlpatterns,
    *ledger.urlpatterns,
    *budgets.urlpatterns,
    *reservations.urlpatterns,
    *site.urlpatterns,
    *site_file.urlpatterns,
    *quota_requests.urlpatterns,
    *inbox.urlpatterns,
    *version.urlpatterns,
    *routes("schema", SchemaView, "schema"),
    *routes("docs", Docs, "docs"),
]
urlpatterns = [
    path("v1/", include(v1)),
    re_path(r"", unknown_endpoint, name="unknown"),
]
