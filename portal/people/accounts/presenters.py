"""Texts of account and team pages."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.contrib.humanize.templatetags.humanize import naturaltime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.people.accounts.models import ApiToken, Team, User
from portal.people.accounts.team_contents import TeamContents


def rights(user: User) -> list[str]:
    """Return the user's site roles as short descriptions."""
    labels = []
    if user.is_superuser:
        labels.append(_("Administrator: full access"))
    if user.is_operator:
        labels.append(_("Operator: manages pools"))
    if user.is_approver:
        labels.append(_("Approver: decides quota requests"))
    if user.is_auditor:
        labels.append(_("Auditor: read-only access to everything"))
    return labels or [_("Member: starts workspaces for your teams")]


def leaving_question(team: Team) -> dict[str, Any]:
    """Return the context of the confirmation to leave a team."""
    params = {"team": team.name}
    return {
        "title": _("Leave %(team)s?") % params,
        "loses": [
            _("starting workspaces for %(team)s") % params,
            _("seeing its members"),
        ],
        "stays": [
            _("the files in your home folder of this team"),
            _("your workspaces in other teams"),
            _("audit log entries"),
        ],
        "yes": _("Leave team"),
    }


def removal_question(team: Team, username: str) -> dict[str, Any]:
    """Return the context of the confirmation to remove a member from a team."""
    params = {"team": team.name, "username": username}
    return {
        "title": _("Remove %(username)s from %(team)s?") % params,
        "loses": [
            _("starting workspaces for %(team)s") % params,
            _("seeing its members"),
        ],
        "stays": [
            _("the files in their home folder of this team"),
            _("their workspaces in other teams"),
            _("audit log entries"),
        ],
        "yes": _("Remove %(username)s") % params,
    }


def revocation_question(actor: User, token: ApiToken) -> dict[str, Any]:
    """Return the context of the confirmation to revoke a token."""
    params = {"name": token.name, "username": token.owner.username}
    own = token.owner_id == actor.pk
    ends = _("access of programs with this token, immediately; it has never been used")
    if token.last_used_at is not None:
        ends = _("access of programs with this token, immediately; it was last used %(when)s")
        ends %= {"when": naturaltime(token.last_used_at)}
    created = _("workspaces that they created")
    job = token.is_job_token
    return {
        "title": (_("Revoke “%(name)s”?") if own else _("Revoke “%(name)s” of %(username)s?")) % params,
        "loses": [ends, *([_("the workspaces of its CI job, which are deleted")] if job else [])],
        "stays": [*([] if job else [created]), _("audit log entries")],
        "yes": _("Revoke token"),
    }


def archive_question(team: Team, contents: TeamContents) -> dict[str, Any]:
    """Return the context of the confirmation to archive a team."""
    params = {"team": team.name}
    return {
        "title": _("Archive %(team)s?") % params,
        "loses": [
            ngettext(
                "%(count)d running or queued workspace, which stops",
                "%(count)d running or queued workspaces, which stop",
                contents.active,
            )
            % {"count": contents.active},
            _("starting workspaces for %(team)s, until the team is restored") % params,
            _("open requests and reservations of the team, which are cancelled"),
        ],
        "stays": [
            ngettext("%(count)d workspace, stopped", "%(count)d workspaces, stopped", contents.workspaces)
            % {"count": contents.workspaces},
            ngettext("%(count)d home folder", "%(count)d home folders", contents.homes)
            % {"count": contents.homes},
            _("members, secrets, quota, GPU-hours and budget, and costs in the reports"),
        ],
        "yes": _("Archive team"),
    }


def team_deletion_question(team: Team, contents: TeamContents) -> dict[str, Any]:
    """Return the context of the confirmation to delete an archived team."""
    counts = asdict(contents)
    return {
        "title": _("Delete %(team)s?") % {"team": team.name},
        "loses": [
            _("memberships: %(members)d; the accounts are kept") % counts,
            _("service accounts: %(service_accounts)d; their valid tokens: %(tokens)d") % counts,
            _("workspaces: %(workspaces)d") % counts,
            _("home folders with all files, on all nodes: %(homes)d") % counts,
            _("templates: %(templates)d; environments: %(environments)d") % counts,
            _("secrets: %(secrets)d; webhooks: %(webhooks)d; channels: %(channels)d") % counts,
            _("limits of the team and its members: %(quotas)d") % counts,
            _("GPU-hours and budget of the team")
            if contents.has_gpu_hours or contents.has_budget
            else _("GPU-hours and budget: none"),
        ],
        "stays": [
            _("usage and costs in the reports, under the slug %(slug)s") % {"slug": team.slug_when_deleted},
            _("the audit log"),
            _("The slug %(slug)s. It can be used again once the home folders are deleted.")
            % {"slug": team.slug},
        ],
        "typed": team.slug,
        "yes": _("Delete team"),
    }


def blocking_workspaces_text(team: Team, username: str, *, leaving: bool) -> str:
    """Return the lead text above workspaces that have to be deleted first."""
    params = {"team": team.name, "username": username}
    first = (
        _("You still have these workspaces in %(team)s.")
        if leaving
        else _("%(username)s still has these workspaces in %(team)s.")
    )
    second = _("Delete them first. Home folders are kept.")
    return f"{first % params} {second}"
