"""Memberships and roles given by SCIM groups, according to the configured rules.

Stored separately from grants of sign-in providers and people, with the source `SOURCE`.
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
"""Upper-case, unlike provider ids, so it cannot collide with one."""
NOTHING = Grants({}, (), frozenset())


def granted(names: Iterable[str]) -> Grants:
    """Return what the rules grant to members of groups with these names."""
    provider = _rules()
    return rules.grants(provider, {provider.claims.groups: sorted(set(names))})


def grants_anything(names: Iterable[str]) -> bool:
    """Return whether rules grant anything to members of a group with these names."""
    return granted(names) != granted([])


def names_of(group: ScimGroup) -> set[str]:
    """Return the names that rules can use for a group: its name, and its id at the provider."""
    return {name for name in (group.display_name, group.external_id) if name}


def apply_grants(rows: Iterable[ScimUser]) -> None:
    """Apply the grants of each user's groups. Deactivated and removed accounts get none.

    Runs in the caller's transaction.
    """
    keys = sorted(row.pk for row in rows)
    if not keys:
        return
    lock_accounts(keys)
    for row in ScimUser.objects.filter(pk__in=keys).select_related("user").prefetch_related("groups"):
        active = row.user.is_active and row.removed_at is None
        names = {name for group in row.groups.all() for name in names_of(group)}
        identity.replace_grants(
            source=SOURCE, name=SOURCE, user=row.user, granted=granted(names) if active else NOTHING
        )


def lock_accounts(keys: Iterable[object]) -> None:
    """Lock these accounts and all administrators, in a fixed order that avoids deadlocks."""
    chosen = User.objects.filter(Q(pk__in=list(keys)) | Q(is_superuser=True)).order_by("pk")
    list(chosen.select_for_update().values_list("pk", flat=True))


def apply_changed_rules() -> int:
    """Apply the rules to all SCIM users if the rules have changed. Returns the number of users."""
    digest = hashlib.sha256(msgspec.json.encode((registry.scim(), _rules().rules))).hexdigest()
    if AppliedRules.objects.filter(pk=1, digest=digest).exists():
        return 0
    keys = list(ScimUser.objects.filter(user__deleted_at=None).values_list("pk", flat=True))
    for key in keys:
        with transaction.atomic():
            apply_grants(ScimUser.objects.filter(pk=key))
    AppliedRules.objects.update_or_create(pk=1, defaults={"digest": digest})
    return len(keys)


def _rules() -> Provider:
    """Return SCIM's own rules together with those of the provider through which its users sign in."""
    scim = registry.scim()
    provider_rules = registry.provider_by_id(scim.provider).rules if scim.provider else ()
    return Provider(id=SOURCE, name=SOURCE, rules=(*scim.rules, *provider_rules))
