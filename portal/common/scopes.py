"""What tokens may be used for."""

from __future__ import annotations

from django.db import models


class Scope(models.TextChoices):
    """What a token may be used for; never more than its user may do."""

    ALL = "all", "Everything you may do"
    WORKSPACES_READ = "workspaces:read", "See workspaces"
    WORKSPACES_WRITE = "workspaces:write", "Create, start, stop and delete workspaces"
    WORKSPACES_CONNECT = "workspaces:connect", "Open workspaces from programs"
    CATALOG_READ = "catalog:read", "See templates and flavors"
    TEAMS_READ = "teams:read", "See teams"
    TEAMS_WRITE = "teams:write", "Change teams"
    POOLS_READ = "pools:read", "See pools, nodes and devices"
    POOLS_WRITE = "pools:write", "Operate pools"
    QUOTAS_READ = "quotas:read", "See quotas, requests, budgets and reservations"
    QUOTAS_WRITE = "quotas:write", "Ask for more, book, and change limits where you may"
    QUOTAS_DECIDE = "quotas:decide", "Approve and deny requests"
    NOTIFICATIONS_READ = "notices:read", "See your notices"
    NOTIFICATIONS_WRITE = "notices:write", "Mark notices as read"
    TOKENS_READ = "tokens:read", "See tokens"
    TOKENS_WRITE = "tokens:write", "Create and revoke tokens"
