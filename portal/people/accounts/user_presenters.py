"""Texts of pages about users, especially of confirmations."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.reasons.wording import sentence_of
from portal.people.accounts import deactivation, policies, sessions
from portal.people.accounts.models import AccountState, User

LOOKS = {
    AccountState.INVITED: ("mail", "wait"),
    AccountState.ACTIVE: ("circle-check", "ok"),
    AccountState.DEACTIVATED: ("circle-off", ""),
    AccountState.DELETED: ("trash", ""),
}


def question(action: str, actor: User, user: User) -> dict[str, Any]:
    """Return the context of the confirmation page for an action of `user_views.ACTIONS`."""
    context: dict[str, Any] = {
        "deactivate": _deactivate,
        "delete": _delete,
        "reset-password": _reset,
        "reset-mfa": _reset_mfa,
        "end-sessions": _end_sessions,
    }[action](actor, user)
    return context


def _deactivate(actor: User, user: User) -> dict[str, Any]:
    params = {"username": user.username}
    return {
        "title": _("Deactivate %(username)s?") % params,
        "loses": [
            _("all sessions, open notebooks and links, within seconds"),
            *_tokens(user),
            *_workspaces_stop(user),
            _("open requests, which are cancelled"),
            *_ownership(actor, user),
        ],
        "stays": [
            _("all files in home folders"),
            _("team memberships, with the role member"),
            _("audit log entries"),
            _("the account, which can be reactivated; ended work is not restored"),
        ],
        "note": _("For the audit log."),
        "yes": _("Deactivate %(username)s") % params,
    }


def own_deletion_question(user: User) -> dict[str, Any]:
    """Return the context of the page to delete one's own account. `refusals` lists what prevents it."""
    return {
        "title": _("Delete your account?"),
        "loses": [
            _("your account, permanently: roles, memberships, API tokens, address and notices"),
            _("all your sessions, open notebooks and links, within seconds; you are signed out here"),
            *_workspaces_stop(user),
            _("your open requests, which are cancelled; approved reservations stay with the team"),
            *_ownership(user, user),
        ],
        "stays": [
            _("your name, which cannot be used again"),
            _("audit log entries of your actions, with your name"),
        ],
        "choices": [*_workspaces_choice(user), *_homes_choice(user)],
        "refusals": [sentence_of(reason) for reason in policies.deletion_obstacles(user)],
        "yes": _("Delete my account"),
    }


def _workspaces_choice(user: User) -> list[dict[str, str]]:
    left = list(user.workspaces.live().order_by("name").values_list("name", flat=True))
    if not left:
        return []
    text = ngettext(
        "Also delete %(count)d workspace: %(names)s", "Also delete %(count)d workspaces: %(names)s", len(left)
    )
    return [
        {
            "name": "workspaces",
            "value": "delete",
            "label": text % {"count": len(left), "names": ", ".join(left[:20])},
            "hint": _("Required to delete the account. Files in home folders are kept."),
        }
    ]


def _homes_choice(user: User) -> list[dict[str, str]]:
    """Return the choice to delete the user's home folders; empty without any."""
    homes = [f"{row['team__slug']}/{user.username} ({row['node']})" for row in user.workspaces.homes()]
    if not homes:
        return []
    text = ngettext(
        "Permanently delete %(count)d home folder with all its files: %(names)s",
        "Permanently delete %(count)d home folders with all their files: %(names)s",
        len(homes),
    )
    names = ", ".join(homes[:20]) + (" …" if len(homes) > 20 else "")
    return [
        {
            "name": "homes",
            "value": "delete",
            "label": text % {"count": len(homes), "names": names},
            "hint": _(
                "Otherwise the files stay in the “homes” folder on the node, where an operator can "
                "find them. Backups are not changed."
            ),
        }
    ]


def _delete(actor: User, user: User) -> dict[str, Any]:
    params = {"username": user.username}
    return {
        "title": _("Delete the account of %(username)s?") % params,
        "loses": [
            _("the account, permanently: roles, memberships, tokens, address and notices"),
            _("all sessions, open notebooks and links, within seconds"),
            *_workspaces_stop(user),
            *_ownership(actor, user),
        ],
        "stays": [
            _("the name, which cannot be used again"),
            _("audit log entries"),
        ],
        "choices": [*_workspaces_choice(user), *_homes_choice(user)],
        "yes": _("Delete account"),
    }


def _reset(_actor: User, user: User) -> dict[str, Any]:
    params = {"username": user.username}
    return {
        "title": _("Reset the password of %(username)s?") % params,
        "loses": [_("the current password, at once"), _("all sessions")],
        "stays": [_("API tokens"), _("workspaces, which continue"), _("all files")],
        "yes": _("Reset password"),
    }


def _reset_mfa(_actor: User, user: User) -> dict[str, Any]:
    params = {"username": user.username}
    return {
        "title": _("Reset the second factors of %(username)s?") % params,
        "loses": [_("the authenticator app, all passkeys and recovery codes"), _("all sessions")],
        "stays": [_("the password, which is then enough to sign in"), _("API tokens"), _("workspaces")],
        "yes": _("Reset second factors"),
    }


def _end_sessions(_actor: User, user: User) -> dict[str, Any]:
    params = {"username": user.username}
    count = user.tokens.filter(revoked_at=None).count()
    context: dict[str, Any] = {
        "title": _("End all sessions of %(username)s?") % params,
        "loses": [_("all sessions, in the portal and in open notebooks")],
        "stays": [_("the password, to sign in again"), _("workspaces, which continue")],
        "yes": _("End all sessions"),
    }
    if count:
        context["choice"] = {
            "name": "tokens",
            "value": "on",
            "label": ngettext("Also revoke %(count)d API token", "Also revoke %(count)d API tokens", count)
            % {"count": count},
            "hint": "",
        }
    return context


def _tokens(user: User) -> list[str]:
    count = user.tokens.filter(revoked_at=None).count()
    text = ngettext("%(count)d API token", "%(count)d API tokens", count)
    return [text % {"count": count}] if count else []


def _workspaces_stop(user: User) -> list[str]:
    names = list(user.workspaces.running_or_waiting().order_by("name").values_list("name", flat=True))
    if not names:
        return []
    text = ngettext("the workspace %(names)s stops", "the workspaces %(names)s stop", len(names))
    name_list = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
    return [text % {"names": name_list}]


def _ownership(actor: User, user: User) -> list[str]:
    lines = []
    for handover in deactivation.planned_handovers(actor, user):
        new_owner = handover.new_owner
        if new_owner and actor.pk == user.pk:
            # Users who delete their own account pass on nothing; sole ownership prevents it
            # (`deletion_obstacles`).
            continue
        params = {"team": handover.membership.team.name, "new_owner": new_owner.username if new_owner else ""}
        if new_owner:
            lines.append(_("ownership of %(team)s, which passes to %(new_owner)s") % params)
        elif handover.others:
            lines.append(_("ownership of %(team)s, which has another owner") % params)
        else:
            lines.append(_("ownership of %(team)s, which then has no members; operators manage it") % params)
    return lines


def session_rows(user: User, key: str = "") -> list[dict[str, Any]]:
    """Return the user's sessions. `current` marks the one with this key."""
    return [{"session": row, "current": row.key == key} for row in sessions.sessions_of(user)]
