"""What an identity provider keeps here by SCIM: whose accounts it keeps, and its groups."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models.functions import Lower


class ScimUserQuerySet(models.QuerySet["ScimUser"]):
    def present(self) -> ScimUserQuerySet:
        """Those that SCIM shows: neither removed by SCIM, nor of a deleted account."""
        return self.filter(removed_at=None, user__deleted_at=None)


class ScimUser(models.Model):
    """An account that SCIM keeps. Its identifier is that of the account.

    `switched_off`: it was SCIM that deactivated the account, so SCIM may give it back. The row of a removed
    one stays, so that the same provider may take the account up again.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="scim"
    )
    external_id = models.CharField(max_length=255, blank=True, db_index=True)
    display_name = models.CharField(max_length=200, blank=True)
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
    """A group of the provider's, with its members. `version` counts its changes."""

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
    """Which rules the places and roles of all members were last settled by: one row."""

    digest = models.CharField(max_length=64)
    applied_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.digest
