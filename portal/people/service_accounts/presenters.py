"""Texts of service account pages."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import may_manage_team
from portal.people.service_accounts import selectors

ON_TEAM_PAGE = 5


def for_team(actor: User, team: Team) -> dict[str, Any]:
    """Return the context of the section on the team page."""
    accounts = selectors.of_team(team)
    accounts_shown = list(accounts[: ON_TEAM_PAGE + 1])
    return {
        "service_accounts": accounts_shown[:ON_TEAM_PAGE],
        "more_service_accounts": len(accounts_shown) > ON_TEAM_PAGE,
        "may_manage_service_accounts": may_manage_team(actor, team),
    }


def question(action: str, account: User) -> dict[str, Any]:
    """Return the context of the confirmation page for `deactivate` and `delete`."""
    return _deactivate(account) if action == "deactivate" else _delete(account)


def _deactivate(account: User) -> dict[str, Any]:
    params = {"username": account.username}
    running = list(account.workspaces.running_or_waiting().order_by("name").values_list("name", flat=True))
    return {
        "title": _("Deactivate %(username)s?") % params,
        "loses": [_("all of its tokens, at once"), _("what its token rules let in"), *_stops(running)],
        "stays": [
            _("its files"),
            _("its token rules, which let in again when it is reactivated"),
            _("the record of what happened"),
        ],
        "note": _("For the audit log."),
        "yes": _("Deactivate %(username)s") % params,
    }


def _delete(account: User) -> dict[str, Any]:
    left = list(account.workspaces.live().order_by("name").values_list("name", flat=True))
    context: dict[str, Any] = {
        "title": _("Delete %(username)s?") % {"username": account.username},
        "loses": [_("the account, for good, with its tokens and its token rules")],
        "stays": [
            _("its files in home folders"),
            _("the name, which nobody else can get, as the home folders carry it"),
            _("the record of what happened"),
        ],
        "yes": _("Delete the account"),
    }
    if left:
        label = ngettext(
            "Delete %(count)d workspace too: %(names)s",
            "Delete %(count)d workspaces too: %(names)s",
            len(left),
        )
        context["choice"] = {
            "name": "workspaces",
            "value": "delete",
            "label": label % {"count": len(left), "names": ", ".join(left[:20])},
            "hint": _("Without it the account is not deleted. Files in home folders stay."),
        }
    return context


def _stops(names: list[str]) -> list[str]:
    if not names:
        return []
    text = ngettext("the workspace %(names)s stops", "the workspaces %(names)s stop", len(names))
    return [text % {"names": ", ".join(names[:10]) + (" …" if len(names) > 10 else "")}]
