"""Repositories that a workspace clones at start, and their credentials.

The agent clones them after the app has started; a failed clone does not fail the start
(`checkout_reports.py`).
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings

from portal.catalog.models import Template
from portal.catalog.repositories.rules import Source, problems_of
from portal.catalog.repositories.selectors import dotfiles_of
from portal.catalog.selectors import node_programs
from portal.common.errors import InvalidInput, StateConflict, Unavailable
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Team, User
from portal.workspaces.codes import GitCode
from portal.workspaces.models import Workspace
from portal.workspaces.secrets import effective
from portal.workspaces.secrets.models import Secret
from portal.workspaces.secrets.models import Source as SecretSource
from provisioning import git_urls
from provisioning.types import CheckoutKind, CheckoutSpec

log = logging.getLogger(__name__)
BY_USER, BY_TEMPLATE = "user", "template"
DEFAULT_USER = "oauth2"
"""Username for a token without one; common Git servers accept any."""
_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----)(.*)", re.DOTALL)


# --- requests -------------------------------------------------------------------------------------


def requested_repository(
    *, owner: User, team: Team, template: Template, git: Source | None
) -> dict[str, Any]:
    """Return the repository of a new workspace: from the request, else from its template; empty for none.

    Raises `InvalidInput` for invalid values, an unknown secret, or if no node has git. A wrong template
    repository does not fail the request; the failed clone is reported later.
    """
    if git is None:
        if not template.git_url:
            return {}
        return {
            "url": template.git_url,
            "ref": template.git_ref,
            "secret": template.git_secret,
            "by": BY_TEMPLATE,
        }
    url, ref, secret = (git[name].strip() for name in ("url", "ref", "secret"))
    problems = problems_of(url, ref, secret)
    if not problems and url and node_programs().lack("git"):
        problems["url"] = Reason(GitCode.NOT_INSTALLED)
    if not problems and secret and secret not in effective.available_secrets(owner, team, template).by_name:
        problems["secret"] = Reason(GitCode.SECRET_UNKNOWN, {"name": secret[:64]})
    if problems:
        first = next(iter(problems.values()))
        fields = {f"git.{name}": [reason] for name, reason in problems.items()}
        raise InvalidInput(first, errors={"git": [first], **fields})
    return {"url": url, "ref": ref, "secret": secret, "by": BY_USER} if url else {}


# --- starts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestedCheckout:
    """A repository to clone at start. `secret` names its credential, which is looked up in `sources`."""

    kind: CheckoutKind
    url: str
    ref: str
    secret: str
    sources: frozenset[SecretSource]


def repositories_to_clone(workspace: Workspace) -> list[RequestedCheckout]:
    """Return the repositories that a start clones: the workspace's, and its owner's or template's dotfiles.

    A template's repository is opened only by secrets of the template or the team. A maintainer of a template
    must not be able to send a user's token to a server of their choice.
    """
    checkouts = []
    if workspace.git:
        own = workspace.git.get("by") == BY_USER
        shared = frozenset({SecretSource.TEAM, SecretSource.TEMPLATE})
        checkouts.append(
            RequestedCheckout(
                CheckoutKind.REPOSITORY,
                workspace.git["url"],
                workspace.git["ref"],
                workspace.git["secret"],
                shared | {SecretSource.USER} if own else shared,
            )
        )
    own_dotfiles = dotfiles_of(workspace.owner)
    if own_dotfiles is not None:
        user = frozenset({SecretSource.USER})
        checkouts.append(
            RequestedCheckout(
                CheckoutKind.DOTFILES, own_dotfiles.url, own_dotfiles.ref, own_dotfiles.secret, user
            )
        )
    elif workspace.template.dotfiles_url:
        checkouts.append(
            RequestedCheckout(CheckoutKind.DOTFILES, workspace.template.dotfiles_url, "", "", frozenset())
        )
    return checkouts


def specs_of(workspace: Workspace) -> tuple[CheckoutSpec, ...]:
    """Return the `repositories_to_clone` as node specifications."""
    return tuple(
        CheckoutSpec(
            kind=checkout.kind,
            url=checkout.url,
            ref=checkout.ref,
            credential=bool(checkout.secret),
            timeout_s=settings.BERTH_CLONE_TIMEOUT_S,
            script_timeout_s=settings.BERTH_DOTFILES_TIMEOUT_S,
            limit_mib=settings.BERTH_HOME_LIMIT_MIB,
        )
        for checkout in repositories_to_clone(workspace)
    )


def secrets_for(workspace: Workspace) -> list[tuple[RequestedCheckout, Secret | None]]:
    """Return the secret of each repository that names one; `None` if it does not exist."""
    with_secret = [checkout for checkout in repositories_to_clone(workspace) if checkout.secret]
    if not with_secret:
        return []
    offer = effective.available_secrets(workspace.owner, workspace.team, workspace.template)
    return [
        (
            checkout,
            next(
                (row for row in offer.by_name.get(checkout.secret, []) if row.source in checkout.sources),
                None,
            ),
        )
        for checkout in with_secret
    ]


def credentials(
    rows: list[tuple[RequestedCheckout, Secret | None]],
    *,
    owner: User,
    now: datetime,
    fetched: effective.Fetched,
) -> list[dict[str, str]]:
    """Return the repositories' credentials for the agent; a missing one has a `problem` instead."""
    results = []
    for checkout, secret in rows:
        try:
            values = (
                effective.values_of([secret], owner=owner, now=now, fetched=fetched)
                if secret is not None
                else []
            )
        except (StateConflict, Unavailable) as error:
            log.warning("no credential for %s: %s", checkout.url, error.reason.code)
            values = []
        credential = _credential(checkout.url, values[0][1]) if values else {"problem": "no_secret"}
        results.append({"what": checkout.kind.value, **credential})
    return results


def _credential(url: str, value: str) -> dict[str, str]:
    """Return the credential for the server of `url`, in the format of `agent/program/git_settings.py`."""
    read = git_urls.parsed(url)
    # OpenSSH does not read keys with CR LF line ends.
    value = value.replace("\r\n", "\n")
    key = _KEY.search(value)
    if isinstance(read, git_urls.UrlProblem) or (key is not None) != (read.scheme == "ssh"):
        return {"problem": "wrong_secret"}
    if key is not None:
        return {"host": read.host, "key": key[1], "known_hosts": key[2].strip()}
    token = value.strip()
    if not token or any(ord(sign) < 32 for sign in token):
        return {"problem": "wrong_secret"}
    user, colon, password = token.partition(":")
    if not colon or not user or ":" in password:
        user, password = DEFAULT_USER, token
    return {"host": read.host, "origin": read.origin, "username": user, "password": password}
