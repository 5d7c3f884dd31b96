"""Models of users and groups provisioned by SCIM."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models.functions import Lower


class ScimUserQuerySet(models.QuerySet["ScimUser"]):
    def present(self) -> ScimUserQuerySet:
        """Return users visible to SCIM: not removed, and with an account that is not deleted."""
        return self.filter(removed_at=None, user__deleted_at=None)


class ScimUser(models.Model):
    """An account managed by SCIM, with the id of the account. `user_name` is the provider's name for it.

    `email_type` and `email_primary` are the provider's values for the account's address.
    `switched_off`: SCIM deactivated the account and may reactivate it. The row of a removed user stays, so
    that the provider can adopt the account again.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="scim"
    )
    user_name = models.CharField(max_length=254, unique=True)
    external_id = models.CharField(max_length=255, blank=True, db_index=True)
    display_name = models.CharField(max_length=200, blank=True)
    email_type = models.CharField(max_length=64, default="work")
    email_primary = models.BooleanField(default=True)
    switched_off = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    removed_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar[models.Manager[ScimUser]] = ScimUserQuerySet.as_manager()

    class Meta:
        ordering = ["user__username"]

    def __str__(self) -> str:
        return f"{self.user_id} by SCIM"


class ScimGroup(models.Model):
    """A group of the provider with its members. `version` counts its changes."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    display_name = models.CharField(max_length=255)
    external_id = models.CharField(max_length=255, blank=True, db_index=True)
    members = models.ManyToManyField(ScimUser, related_name="groups")
    version = models.PositiveBigIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["display_name"]
        constraints = [models.UniqueConstraint(Lower("display_name"), name="scim_group_name_unique")]

    def __str__(self) -> str:
        return self.display_name


class AppliedRules(models.Model):
    """Digest of the rules that were last applied to all members. A single row."""

    digest = models.CharField(max_length=64)
    applied_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.digest
