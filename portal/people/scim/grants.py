"""Which places in teams and roles the groups of SCIM give, by the rules of the configuration.

They are kept apart from what sign-in providers and people gave: their source is `SOURCE`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec
from django.db import transaction
from django.db.models import Q

from portal.people.accounts.models import User
from portal.people.identity import registry, rules
from portal.people.identity import services as identity
from portal.people.identity.config import Provider
from portal.people.identity.rules import Grants
from portal.people.scim.models import AppliedRules, ScimGroup, ScimUser

SOURCE = "SCIM"
"""No provider has this id: theirs are in lower case."""
NOTHING = Grants({}, (), frozenset())


def granted(names: Iterable[str]) -> Grants:
    """What the rules give to whoever is in groups of these names."""
    provider = _rules()
    return rules.grants(provider, {provider.claims.groups: sorted(set(names))})


def gives(names: Iterable[str]) -> bool:
    """Whether a group of these names changes what its members hold."""
    return granted(names) != granted([])


def names_of(group: ScimGroup) -> set[str]:
    """By what rules may name a group: its name, and its identifier at the provider."""
    return {name for name in (group.display_name, group.external_id) if name}


def settle(rows: Iterable[ScimUser]) -> None:
    """Have each hold what their groups give at present: nothing where the account is switched off or removed.

    In the caller's transaction.
    """
    keys = sorted(row.pk for row in rows)
    if not keys:
        return
    lock(keys)
    for row in ScimUser.objects.filter(pk__in=keys).select_related("user").prefetch_related("groups"):
        held = row.user.is_active and row.removed_at is None
        names = {name for group in row.groups.all() for name in names_of(group)}
        identity.give(source=SOURCE, name=SOURCE, user=row.user, granted=granted(names) if held else NOTHING)


def lock(keys: Iterable[object]) -> None:
    """Lock these accounts and those of all administrators in one order, as all that changes several does."""
    chosen = User.objects.filter(Q(pk__in=list(keys)) | Q(is_superuser=True)).order_by("pk")
    list(chosen.select_for_update().values_list("pk", flat=True))


def apply_changed_rules() -> int:
    """Settle everybody whom SCIM keeps if the rules are other ones than last time; returns how many."""
    digest = hashlib.sha256(msgspec.json.encode((registry.scim(), _rules().rules))).hexdigest()
    if AppliedRules.objects.filter(pk=1, digest=digest).exists():
        return 0
    keys = list(ScimUser.objects.filter(user__deleted_at=None).values_list("pk", flat=True))
    for key in keys:
        with transaction.atomic():
            settle(ScimUser.objects.filter(pk=key))
    AppliedRules.objects.update_or_create(pk=1, defaults={"digest": digest})
    return len(keys)


def _rules() -> Provider:
    """SCIM's own rules, and those of the provider by which its people sign in."""
    scim = registry.scim()
    more = registry.named(scim.provider).rules if scim.provider else ()
    return Provider(id=SOURCE, name=SOURCE, rules=(*scim.rules, *more))
