"""The groups of operations in the order of the document. A view states its group as `tag`."""

from __future__ import annotations

from collections.abc import Mapping

TAGS: Mapping[str, str] = {
    "workspaces": "Workspaces: create, follow, start, stop, extend and delete them.",
    "files": "Files of home folders, and archives of whole ones.",
    "queue": "What waits, what would become of a request, and capacity booked for a time.",
    "catalog": "Templates and flavors.",
    "environments": "Software environments, their versions and builds.",
    "secrets": "Secrets of users, teams and templates, and dotfiles.",
    "quotas": "Quotas, limits, caps, cohorts and shares.",
    "requests": "Asking for more, approving, and who decides.",
    "gpu-hours": "Ledgers of GPU-hours, what an hour costs, and budgets in money.",
    "reclaim": "When idle and old workspaces end, and what GPUs did.",
    "gpus": "Pools, nodes, devices and their checks.",
    "machines": "Machines that join, the homes on them, and what nobody owns.",
    "teams": "Teams, their members, joining them, and what their workspaces may reach.",
    "users": "People, and how they sign in.",
    "tokens": "API tokens, service accounts and the exchange of a CI job's token.",
    "notices": "What happens: events, notices, the channels they go out by, webhooks and the audit log.",
    "site": "The site as a file, and which Berth it is.",
}
"""Descriptions by name."""
