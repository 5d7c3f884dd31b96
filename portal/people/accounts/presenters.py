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
            _("You can no longer start workspaces for %(team)s") % params,
            _("You can no longer see its members"),
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
            _("%(username)s can no longer start workspaces for %(team)s") % params,
            _("%(username)s can no longer see its members") % params,
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
    ends = _("Programs with this token lose access immediately. It has never been used.")
    if token.last_used_at is not None:
        ends = _("Programs with this token lose access immediately. It was last used %(when)s.")
        ends %= {"when": naturaltime(token.last_used_at)}
    created = _("workspaces that they created")
    job = token.is_job_token
    return {
        "title": (_("Revoke “%(name)s”?") if own else _("Revoke “%(name)s” of %(username)s?")) % params,
        "loses": [ends, *([_("The workspaces of its CI job are deleted.")] if job else [])],
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
                "%(count)d running or queued workspace, which stops.",
                "%(count)d running or queued workspaces, which stop.",
                contents.active,
            )
            % {"count": contents.active},
            _("No workspace of %(team)s can start until the team is restored.") % params,
            _("Open requests and reservations of the team are cancelled."),
        ],
        "stays": [
            ngettext("%(count)d workspace, stopped.", "%(count)d workspaces, stopped.", contents.workspaces)
            % {"count": contents.workspaces},
            ngettext("%(count)d home folder.", "%(count)d home folders.", contents.homes)
            % {"count": contents.homes},
            _("Members, secrets, quota, GPU-hours and budget. Costs stay in the reports."),
        ],
        "yes": _("Archive team"),
    }


def team_deletion_question(team: Team, contents: TeamContents) -> dict[str, Any]:
    """Return the context of the confirmation to delete an archived team."""
    counts = asdict(contents)
    return {
        "title": _("Delete %(team)s?") % {"team": team.name},
        "loses": [
            _("Memberships: %(members)d. The accounts are kept.") % counts,
            _("Service accounts: %(service_accounts)d. Their valid tokens: %(tokens)d.") % counts,
            _("Workspaces: %(workspaces)d.") % counts,
            _("Home folders with all files, on all nodes: %(homes)d.") % counts,
            _("Templates: %(templates)d. Environments: %(environments)d.") % counts,
            _("Secrets: %(secrets)d. Webhooks: %(webhooks)d. Channels: %(channels)d.") % counts,
            _("Limits of the team and its members: %(quotas)d.") % counts,
            _("GPU-hours and budget of the team.")
            if contents.has_gpu_hours or contents.has_budget
            else _("GPU-hours and budget: none."),
        ],
        "stays": [
            _("Usage and costs in the reports, under the slug %(slug)s.") % {"slug": team.slug_when_deleted},
            _("The audit log."),
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
