"""Read operations on secrets. They never return a value."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet

from portal.catalog import selectors as catalog
from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import Team, User
from portal.people.accounts.policies import may_view_team
from portal.workspaces.secrets.codes import SecretCode
from portal.workspaces.secrets.models import Holder, Secret, columns_of


def team_of(actor: User, slug: str) -> Holder:
    """Return a team visible to the actor. Raises `NotFound`."""
    return accounts.team_by_slug(actor, slug)


def template_of(actor: User, slug: str) -> Holder:
    """Return a template visible to the actor. Raises `NotFound`."""
    return catalog.visible_template(actor, slug)


def secrets_of(holder: Holder) -> QuerySet[Secret]:
    """Return the holder's secrets by name, without values. The caller has checked permissions."""
    rows = Secret.objects.filter(**columns_of(holder)).defer("sealed")
    related = ("user", "team", "template", "created_by", "changed_by", "delivered_to")
    return rows.select_related(*related).order_by("name", "pk")


def secret_named(holder: Holder, name: str) -> Secret:
    """Return a secret of the holder. Raises `NotFound`."""
    secret = secrets_of(holder).filter(name=name[:100]).first()
    if secret is None:
        raise NotFound(Reason(SecretCode.NO_SUCH_SECRET))
    return secret


def secret_by_id(actor: User, secret_id: UUID) -> Secret:
    """Return a secret whose holder is visible to the actor. Raises `NotFound`."""
    related = ("user", "team", "template__team", "created_by", "changed_by", "delivered_to")
    secret = Secret.objects.filter(pk=secret_id).defer("sealed").select_related(*related).first()
    if secret is not None:
        match secret.holder:
            case User() as user:
                seen = user.pk == actor.pk
            case Team() as team:
                seen = may_view_team(actor, team)
            case template:
                seen = catalog.templates_for(actor).filter(pk=template.pk).exists()
        if seen:
            return secret
    raise NotFound(Reason(SecretCode.NO_SUCH_SECRET))
