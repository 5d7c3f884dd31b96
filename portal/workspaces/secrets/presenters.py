"""Presenters for pages of secrets. They never show a value."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.people.accounts.models import Team, User
from portal.workspaces.secrets.effective import AvailableSecrets, is_automatic
from portal.workspaces.secrets.models import Holder, Secret, Source

OF: dict[Source, str | Promise] = {
    Source.USER: gettext_lazy("yours"),
    Source.TEAM: gettext_lazy("the team's"),
    Source.TEMPLATE: gettext_lazy("the template's"),
}


def list_url(holder: Holder) -> str:
    """Return the URL of the page of a holder's secrets."""
    match holder:
        case User():
            return reverse("workspace_secrets:own")
        case Team():
            return reverse("workspace_secrets:team", args=[holder.slug])
        case _:
            return reverse("workspace_secrets:template", args=[holder.slug])


def crumbs(holder: Holder) -> list[tuple[str, str]]:
    """Return URL and name of the pages above the list."""
    match holder:
        case User():
            return [(reverse("accounts:account"), _("Account"))]
        case Team():
            url = reverse("home:team", args=[holder.slug])
            return [(reverse("accounts:teams"), _("Teams")), (url, holder.name)]
        case _:
            url = reverse("catalog_pages:template", args=[holder.slug])
            return [(reverse("catalog_pages:templates"), _("Templates")), (url, holder.name)]


def recipients_sentence(holder: Holder) -> str:
    """Return a sentence that says which workspaces get the secrets."""
    match holder:
        case User():
            return _(
                "Available to your workspaces. Select secrets at the start, or include them in every "
                "workspace."
            )
        case Team():
            return _(
                "Available to workspaces of %(team)s, where its members can read them. Select "
                "secrets at the start, or include them in every workspace."
            ) % {"team": holder.name}
        case _:
            return _(
                "All workspaces of %(template)s receive these secrets, and their users can read them."
            ) % {"template": holder.name}


def deleting_question(secret: Secret) -> dict[str, Any]:
    """Return the context of the confirmation page for deleting a secret."""
    return {
        "title": _("Delete the secret %(name)s?") % {"name": secret.name},
        "loses": [_("its value, permanently"), _("the secret in new workspaces")],
        "stays": [_("copies in running workspaces, until they stop"), _("copies outside of Berth")],
        "yes": _("Delete secret"),
    }


@dataclass(frozen=True, slots=True)
class SecretChoice:
    """A secret that a new workspace can name or gets automatically.

    `source` is its holder; `hides` is the holder of the secret that it overrides, or empty.
    """

    name: str
    kind: str
    source: str
    hides: str
    automatic: bool
    chosen: bool


def choices(offer: AvailableSecrets, names: Collection[str]) -> list[SecretChoice]:
    """Return the secrets for the form of a new workspace: optional ones first, then automatic ones."""
    options = []
    for name, rows in offer.by_name.items():
        # The secret that applies without a selection, and the one with a selection.
        automatic = next((row for row in rows if is_automatic(row)), None)
        for row in (rows[0],) if automatic is None or automatic is rows[0] else (rows[0], automatic):
            below = rows[rows.index(row) + 1 :]
            options.append(
                SecretChoice(
                    name=name,
                    kind=str(row.get_kind_display()),
                    source=str(OF[row.source]),
                    hides=str(OF[below[0].source]) if below else "",
                    automatic=row is automatic,
                    chosen=row is not automatic and name in names,
                )
            )
    return sorted(options, key=lambda option: (option.automatic, option.name))
