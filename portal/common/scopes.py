"""Scopes of API tokens."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Scope(models.TextChoices):
    """A permission of a token. A token never permits more than its user may do."""

    ALL = "all", _("Full access with your permissions")
    WORKSPACES_READ = "workspaces:read", _("View workspaces")
    WORKSPACES_WRITE = "workspaces:write", _("Create, start, stop and delete workspaces")
    WORKSPACES_CONNECT = "workspaces:connect", _("Open workspaces from programs")
    CATALOG_READ = "catalog:read", _("View templates and flavors")
    CATALOG_WRITE = "catalog:write", _("Change templates and flavors that you manage")
    ENVIRONMENTS_READ = "environments:read", _("View software environments and their builds")
    ENVIRONMENTS_WRITE = "environments:write", _("Create, build and change software environments")
    SECRETS_READ = "secrets:read", _("View names of secrets")
    SECRETS_WRITE = "secrets:write", _("Create, change and delete secrets that you manage")
    TEAMS_READ = "teams:read", _("View teams")
    TEAMS_WRITE = "teams:write", _("Change teams")
    POOLS_READ = "pools:read", _("View pools, nodes and devices")
    POOLS_WRITE = "pools:write", _("Operate pools")
    QUOTAS_READ = "quotas:read", _("View quotas, requests, budgets and reservations")
    QUOTAS_WRITE = "quotas:write", _("Request quota and reservations, and change limits that you manage")
    QUOTAS_DECIDE = "quotas:decide", _("Approve and deny requests")
    INBOX_READ = "inbox:read", _("View your inbox")
    NOTIFICATIONS_READ = "notices:read", _("View your notices")
    NOTIFICATIONS_WRITE = "notices:write", _("Mark notices as read")
    WEBHOOKS_READ = "webhooks:read", _("View webhooks and channels that you manage")
    WEBHOOKS_WRITE = "webhooks:write", _("Change webhooks and channels that you manage")
    TOKENS_READ = "tokens:read", _("View tokens")
    TOKENS_WRITE = "tokens:write", _("Create and revoke tokens")
    USERS_READ = "users:read", _("View user accounts")
    USERS_WRITE = "users:write", _("Invite, change and deactivate users")
    AUDIT_READ = "audit:read", _("Read the audit log")
    EVENTS_READ = "events:read", _("Read the event feed")
    SITE_READ = "site:read", _("Export the site as a file")
    SITE_WRITE = "site:write", _("Compare the site with a file, and apply it")
    SCIM = "scim", _("Manage accounts and groups with SCIM only")


READING = frozenset(scope for scope in Scope if scope.value.endswith(":read"))
"""Read-only scopes, the only ones allowed for tokens of auditors."""
