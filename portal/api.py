"""URLs of the REST API, which each app contributes, and its documentation page."""

from __future__ import annotations

from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularSwaggerSplitView

from portal.catalog import api as catalog
from portal.catalog.environments import api as environments
from portal.catalog.repositories import api as repositories
from portal.common.api import routes, unknown_endpoint
from portal.common.events import api as events
from portal.common.events import audit_api as audit
from portal.fleet.announcements import api as announcements
from portal.fleet.inventory import api as inventory
from portal.fleet.inventory import maintenance_api as maintenance
from portal.fleet.inventory import sample_api as samples
from portal.fleet.machines import api as machines
from portal.gpu_checks import api as gpu_checks
from portal.notify.channels import api as channels
from portal.notify.webhooks import api as webhooks
from portal.people.accounts import api as accounts
from portal.people.accounts import security_api as security_events
from portal.people.accounts import token_api as tokens
from portal.people.accounts import user_api as users
from portal.people.accounts.invitations import api as invitations
from portal.people.identity import api as identity
from portal.people.join_requests import api as join_requests
from portal.people.service_accounts import api as service_accounts
from portal.people.service_accounts import rule_api as trust_rules
from portal.quota.ledger import api as ledger
from portal.quota.ledger import budget_api as budgets
from portal.quota.limits.api import changes, limits, site
from portal.quota.requests import api as quota_requests
from portal.quota.reservations import api as reservations
from portal.reclaim import api as reclaim
from portal.reclaim import home_api as reclaimed_homes
from portal.reclaim import policy_api as reclaim_policies
from portal.reclaim.rebalancing import api as rebalancing
from portal.reports import api as reports
from portal.reports import idle_api
from portal.scheduling import api as scheduling
from portal.scheduling import bulk_act_api as bulk_acts
from portal.scheduling import drain_api as drains
from portal.site_file import api as site_file
from portal.web.catalog import preview_api as catalog_previews
from portal.web.event_feed import api as event_feed
from portal.web.inbox import api as inbox
from portal.web.openapi import api as version
from portal.web.openapi.served import SchemaView
from portal.workspaces import api as workspaces
from portal.workspaces import bulk_api as bulk
from portal.workspaces import efficiency_api as efficiency
from portal.workspaces import event_api as workspace_events
from portal.workspaces import package_api as packages
from portal.workspaces import usage_api as usage
from portal.workspaces.home_files import api as home_files
from portal.workspaces.home_files import archive_api as home_archives
from portal.workspaces.homes import api as homes
from portal.workspaces.homes import evacuation_api as evacuations
from portal.workspaces.homes import move_api as home_moves
from portal.workspaces.orphans import api as orphans
from portal.workspaces.secrets import api as secrets


class Docs(SpectacularSwaggerSplitView):
    """API documentation page: without inline code or content from other hosts."""

    schema = None
    url_name = "api:schema"
    template_name = "api/docs.html"


app_name = "api"
v1 = [
    *workspaces.urlpatterns,
    *workspace_events.urlpatterns,
    *efficiency.urlpatterns,
    *usage.urlpatterns,
    *bulk.urlpatterns,
    *bulk_acts.urlpatterns,
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
    *invitations.urlpatterns,
    *repositories.urlpatterns,
    *tokens.urlpatterns,
    *security_events.urlpatterns,
    *users.urlpatterns,
    *identity.urlpatterns,
    *service_accounts.urlpatterns,
    *trust_rules.urlpatterns,
    *join_requests.urlpatterns,
    *inventory.urlpatterns,
    *maintenance.urlpatterns,
    *announcements.urlpatterns,
    *samples.urlpatterns,
    *reports.urlpatterns,
    *idle_api.urlpatterns,
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
    *changes.urlpatterns,
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
