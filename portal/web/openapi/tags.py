"""The groups of operations, in the order of the document. A view names its group as `tag`."""

from __future__ import annotations

from collections.abc import Mapping

TAGS: Mapping[str, str] = {
    "workspaces": "Workspaces: create, follow, start, stop, extend and delete them.",
    "files": "Files in home folders, and archives of home folders.",
    "queue": "The queue, previews of requests, and reservations.",
    "catalog": "Templates and flavors.",
    "environments": "Software environments, their versions and builds.",
    "secrets": "Secrets of users, teams and templates, and dotfiles.",
    "quotas": "Quotas, limits, caps, cohorts and shares.",
    "requests": "Quota requests, approvals, delegations and auto-approve rules.",
    "gpu-hours": "Ledgers of GPU-hours, rates and budgets.",
    "reclaim": "Reclaim policies for idle and old workspaces, and reports of GPU use.",
    "gpus": "Pools, nodes, devices and their checks.",
    "machines": "Machines, the homes on them, and orphans.",
    "teams": "Teams, members, requests to join and egress policies.",
    "users": "Users and sign-in.",
    "tokens": "API tokens, service accounts and token exchange for CI jobs.",
    "notices": "Events, notices, notice channels, webhooks and the audit log.",
    "site": "Site files and the version of Berth.",
}
"""Descriptions by name."""
