"""Texts of account and team pages."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _

from portal.people.accounts.models import Team, User


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


def held_lead(team: Team, username: str, *, leaving: bool) -> str:
    """Return the lead text above workspaces that have to be deleted first."""
    params = {"team": team.name, "username": username}
    first = (
        _("You still have these workspaces in %(team)s.")
        if leaving
        else _("%(username)s still has these workspaces in %(team)s.")
    )
    second = _("Delete them first. Home folders are kept.")
    return f"{first % params} {second}"
