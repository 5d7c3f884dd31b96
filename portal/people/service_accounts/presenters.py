"""Texts of service account pages."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import may_manage_team
from portal.people.service_accounts import selectors

ON_TEAM_PAGE = 5


def team_section_context(actor: User, team: Team) -> dict[str, Any]:
    """Return the context of the section on the team page."""
    accounts = selectors.service_accounts_of_team(team)
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
        "loses": [_("all its tokens, at once"), _("token exchange with its trust rules"), *_stops(running)],
        "stays": [
            _("its files"),
            _("its trust rules, which work again after reactivation"),
            _("audit log entries"),
        ],
        "note": _("For the audit log."),
        "yes": _("Deactivate %(username)s") % params,
    }


def _delete(account: User) -> dict[str, Any]:
    left = list(account.workspaces.live().order_by("name").values_list("name", flat=True))
    context: dict[str, Any] = {
        "title": _("Delete %(username)s?") % {"username": account.username},
        "loses": [_("the account, permanently, with its tokens and trust rules")],
        "stays": [
            _("its files in home folders"),
            _("the name, which cannot be used again"),
            _("audit log entries"),
        ],
        "yes": _("Delete account"),
    }
    if left:
        label = ngettext(
            "Also delete %(count)d workspace: %(names)s",
            "Also delete %(count)d workspaces: %(names)s",
            len(left),
        )
        context["choice"] = {
            "name": "workspaces",
            "value": "delete",
            "label": label % {"count": len(left), "names": ", ".join(left[:20])},
            "hint": _("Required to delete the account. Files in home folders are kept."),
        }
    return context


def _stops(names: list[str]) -> list[str]:
    if not names:
        return []
    text = ngettext("the workspace %(names)s stops", "the workspaces %(names)s stop", len(names))
    return [text % {"names": ", ".join(names[:10]) + (" …" if len(names) > 10 else "")}]
