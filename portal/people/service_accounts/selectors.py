"""Queries for service accounts and tokens visible to the actor."""

from __future__ import annotations

from django.db.models import Count, F, Max, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import ApiToken, ApiTokenQuerySet, Team, User
from portal.people.service_accounts import policies
from portal.people.service_accounts.codes import ServiceAccountCode


def service_accounts_of_team(team: Team) -> QuerySet[User]:
    """Return the team's service accounts by name, with `token_count` (valid tokens) and `last_used_at`.

    The caller has checked that the actor may see the team.
    """
    working = ApiToken.objects.valid_at(timezone.now()).filter(owner=OuterRef("pk")).order_by()
    counted = working.values("owner").annotate(count=Count("pk")).values("count")
    used = ApiToken.objects.filter(owner=OuterRef("pk")).order_by().values("owner")
    return (
        User.objects.not_deleted()
        .filter(owning_team=team)
        .select_related("owning_team")
        .annotate(
            token_count=Coalesce(Subquery(counted), 0),
            last_used_at=Subquery(used.annotate(at=Max("last_used_at")).values("at")),
            created_at=F("date_joined"),
        )
        .order_by("username")
    )


def service_account_by_name(actor: User, slug: str, username: str) -> User:
    """Return a service account of a team visible to the actor. Raises `NotFound`."""
    team = accounts.team_by_slug(actor, slug)
    account = service_accounts_of_team(team).filter(username=strip_nul(username)).first()
    if account is None:
        params = {"username": username, "team": team.name}
        raise NotFound(Reason(ServiceAccountCode.NO_SUCH_SERVICE_ACCOUNT, params))
    return account


def tokens_of(actor: User, account: User) -> ApiTokenQuerySet:
    """Return the account's tokens that are not revoked.

    Raises `NotAllowed` if the actor may not see credentials.
    """
    assert account.owning_team is not None
    policies.require_see_credentials(actor, account.owning_team)
    return accounts.tokens_of(account)
