"""Scopes of API tokens."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Scope(models.TextChoices):
    """What a token permits. A token never permits more than its user may do."""

    ALL = "all", _("Everything you may do")
    WORKSPACES_READ = "workspaces:read", _("See workspaces")
    WORKSPACES_WRITE = "workspaces:write", _("Create, start, stop and delete workspaces")
    WORKSPACES_CONNECT = "workspaces:connect", _("Open workspaces from programs")
    CATALOG_READ = "catalog:read", _("See templates and flavors")
    CATALOG_WRITE = "catalog:write", _("Change templates and flavors that you manage")
    ENVIRONMENTS_READ = "environments:read", _("See software environments and their builds")
    ENVIRONMENTS_WRITE = "environments:write", _("Make, build and change software environments")
    SECRETS_READ = "secrets:read", _("See the names of secrets")
    SECRETS_WRITE = "secrets:write", _("Write and delete secrets that you manage")
    TEAMS_READ = "teams:read", _("See teams")
    TEAMS_WRITE = "teams:write", _("Change teams")
    POOLS_READ = "pools:read", _("See pools, nodes and devices")
    POOLS_WRITE = "pools:write", _("Operate pools")
    QUOTAS_READ = "quotas:read", _("See quotas, requests, budgets and reservations")
    QUOTAS_WRITE = "quotas:write", _("Ask for more, book, and change limits where you may")
    QUOTAS_DECIDE = "quotas:decide", _("Approve and deny requests")
    INBOX_READ = "inbox:read", _("See what waits for you")
    NOTIFICATIONS_READ = "notices:read", _("See your notices")
    NOTIFICATIONS_WRITE = "notices:write", _("Mark notices as read")
    WEBHOOKS_READ = "webhooks:read", _("See webhooks and channels that you manage")
    WEBHOOKS_WRITE = "webhooks:write", _("Change webhooks and channels that you manage")
    TOKENS_READ = "tokens:read", _("See tokens")
    TOKENS_WRITE = "tokens:write", _("Create and revoke tokens")
    USERS_READ = "users:read", _("See people and their accounts")
    USERS_WRITE = "users:write", _("Invite, change and deactivate people")
    AUDIT_READ = "audit:read", _("Read the audit log")
    EVENTS_READ = "events:read", _("Follow what happens")
    SITE_READ = "site:read", _("Export the site as a file")
    SITE_WRITE = "site:write", _("Compare the site with a file, and apply it")
    SCIM = "scim", _("Keep accounts and groups by SCIM, and nothing else")


READING = frozenset(scope for scope in Scope if scope.value.endswith(":read"))
"""Read-only scopes, the only ones allowed for tokens of auditors."""
