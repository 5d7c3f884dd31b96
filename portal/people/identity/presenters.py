"""Presentation of providers and of sign-in previews, for pages and REST. Contains no secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from portal.common.htmx import public_url
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of, sentence_of
from portal.people.identity.config import Ldap, Oidc, Provider, Rule, Saml
from portal.people.identity.decisions import Effect, SignInDecision, missing_teams

KINDS = {"oidc": "OpenID Connect", "saml": "SAML 2.0", "ldap": "LDAP"}
EFFECTS = {
    Effect.GAINED: (_("new"), "plus", "ok"),
    Effect.KEPT: (_("unchanged"), "check", ""),
    Effect.CHANGED: (_("changed"), "refresh", "wait"),
    Effect.LOST: (_("removed"), "x", "bad"),
}


def provider_row(provider: Provider, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provider as a list row: kind, state, number of accounts, missing teams."""
    provider_figures = figures.get(provider.id, {})
    return {
        "id": provider.id,
        "name": provider.name,
        "kind": provider.kind,
        "kind_label": KINDS[provider.kind],
        "enabled": provider.enabled,
        "address": address_of(provider),
        "accounts": provider_figures.get("accounts", 0),
        "last_sign_in_at": provider_figures.get("last"),
        "missing_teams": missing_teams(provider),
    }


def address_of(provider: Provider) -> str:
    """Return the address of the provider."""
    match provider:
        case Oidc():
            return provider.issuer
        case Saml():
            return provider.sso_url
        case Ldap():
            return provider.url
        case _:
            return ""


def settings_of(provider: Provider) -> list[tuple[str, str]]:
    """Return the configuration as pairs of label and value. Secrets are shown as references."""
    claims = provider.claims
    rows = [(_("Address"), address_of(provider))]
    match provider:
        case Oidc():
            rows += [
                (_("Client ID"), provider.client_id),
                (_("Client secret"), provider.client_secret or _("none")),
                (_("Redirect address"), public_url() + callback_path(provider)),
                (_("Scopes"), " ".join(provider.scopes)),
                (
                    _("Sign-out"),
                    _("here and at the provider") if provider.sign_out_everywhere else _("here only"),
                ),
            ]
        case Saml():
            rows += [
                (_("Entity ID"), provider.entity_id),
                (_("Certificate"), provider.certificate),
                (_("Redirect address"), f"{public_url()}/sign-in/saml/{provider.id}/acs/"),
                (_("Our metadata"), f"{public_url()}/sign-in/saml/{provider.id}/metadata/"),
            ]
        case Ldap():
            rows += [
                (_("Encryption"), "StartTLS" if provider.start_tls else provider.url.partition(":")[0]),
                (_("Binds as"), provider.bind_dn or _("anonymous")),
                (_("Password"), provider.bind_password or _("none")),
                (_("People"), f"{provider.user_base} {provider.user_filter}"),
                (
                    _("Groups"),
                    f"{provider.group_base} {provider.group_filter}" if provider.group_base else _("none"),
                ),
            ]
    rows += [
        (_("Name from"), _pattern(claims.username, provider.username_pattern)),
        (_("E-mail"), f"{claims.email} ({_('trusted') if provider.trust_email else claims.email_verified})"),
        (_("Groups from"), claims.groups),
        (_("New accounts"), _("created") if provider.create_accounts else _("not created")),
        (_("Links accounts by"), ", ".join(provider.link) or _("administrators only")),
        (_("Requires"), "; ".join(condition.as_text() for condition in provider.require) or _("nothing")),
        (
            _("Second factor"),
            _("at the provider, if %(rule)s")
            % {"rule": _(" or ").join(condition.as_text() for condition in provider.mfa)}
            if provider.mfa
            else _("here, as for all users"),
        ),
    ]
    return rows


def callback_path(provider: Provider) -> str:
    """Return the path of the redirect URI for an OpenID Connect provider."""
    return f"/sign-in/oidc/{provider.id}/callback/"


def _pattern(claim: str, pattern: str) -> str:
    return f"{claim} ~ {pattern}" if pattern else claim


def rule_rows(provider: Provider) -> list[dict[str, Any]]:
    """Return the rules as table rows: condition, grant, and whether the team is missing."""
    missing = set(missing_teams(provider))
    return [
        {"when": rule.as_text(), "then": _consequence(rule), "missing": rule.team in missing}
        for rule in provider.rules
    ]


def _consequence(rule: Rule) -> str:
    if rule.site_role:
        return _("%(role)s in the portal") % {"role": rule.site_role}
    suffix = f" ({_('created if missing')})" if rule.create_team else ""
    return _("%(role)s of %(team)s") % {"role": rule.role, "team": rule.team} + suffix


def decision_json(decision: SignInDecision) -> dict[str, Any]:
    """Return a decision in its REST form."""
    person = decision.person
    return {
        "action": decision.action,
        "username": decision.username,
        "refusal": reason_json(decision.refusal) if decision.refusal is not None else None,
        "linked_by": decision.how.value if decision.how is not None else "",
        "email": person.email if person is not None else "",
        "unverified_email": person.unverified_email if person is not None else "",
        "first_name": person.first_name if person is not None else "",
        "last_name": person.last_name if person is not None else "",
        "groups": list(person.groups) if person is not None else [],
        "mfa": person.mfa if person is not None else False,
        "teams": [
            {"team": place.team, "role": place.role, "effect": place.effect.value, "by_rule": place.given}
            for place in decision.membership_changes
        ],
        "roles": [{"role": role.role, "effect": role.effect.value} for role in decision.roles],
        "problems": [reason_json(reason) for reason in decision.problems],
    }


def reason_json(reason: Reason) -> dict[str, Any]:
    """Return a reason with message and next action."""
    return {**reason.as_json(), "detail": message_of(reason), "next_action": next_action_of(reason)}


def present_decision(decision: SignInDecision) -> dict[str, Any]:
    """Return a decision for a page."""
    headline = {
        "refuse": _("The sign-in would be denied"),
        "create": _("The account %(username)s would be created"),
        "link": _("The account %(username)s would be linked"),
        "sign_in": _("%(username)s would be signed in"),
    }[decision.action] % {"username": decision.username}
    person = decision.person
    return {
        "refused": decision.refusal is not None,
        "headline": headline,
        "refusal": sentence_of(decision.refusal) if decision.refusal is not None else "",
        "problems": [sentence_of(reason) for reason in decision.problems],
        "facts": []
        if person is None
        else [
            (_("Subject"), person.subject),
            (_("Name"), person.username),
            (_("E-mail"), person.email or _unverified(person.unverified_email)),
            (_("Full name"), f"{person.first_name} {person.last_name}".strip() or _("nothing")),
            (_("Groups"), ", ".join(person.groups) or _("none")),
            (
                _("Second factor"),
                _("completed at the provider") if person.mfa else _("requested here, if required"),
            ),
        ],
        "changes": []
        if decision.refusal is not None
        else [
            *(
                {
                    "what": _("Team %(team)s") % {"team": place.team},
                    "role": place.role,
                    **_effect_look(place.effect),
                }
                for place in decision.membership_changes
            ),
            *(
                {"what": _("Portal"), "role": role.role, **_effect_look(role.effect)}
                for role in decision.roles
            ),
        ],
    }


def _unverified(email: str) -> str:
    return _("%(email)s (not verified, not used)") % {"email": email} if email else _("none")


def _effect_look(effect: Effect) -> dict[str, str]:
    label, icon, tone = EFFECTS[effect]
    return {"effect": label, "icon": icon, "tone": tone}


def unlink_question(provider: Provider, username: str) -> dict[str, Any]:
    """Return the context of the confirmation to remove a link."""
    params = {"username": username, "provider": provider.name}
    return {
        "title": _("Unlink %(username)s from %(provider)s?") % params,
        "loses": [
            _("sign-in of %(username)s with %(provider)s") % params,
            _("all sessions"),
            _("memberships and roles granted by rules of %(provider)s") % params,
        ],
        "stays": [_("the account, its workspaces and files"), _("a password, if there is one")],
        "yes": _("Unlink account"),
    }


def claims_text(claims: Mapping[str, Any]) -> str:
    """Format claims for a page."""
    return json.dumps(claims, indent=2, ensure_ascii=False, sort_keys=True, default=str)
