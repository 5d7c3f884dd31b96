"""Planned maintenance of the site or of a pool."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from portal.fleet.inventory.models.capacity import Pool

SITE = uuid.UUID(int=0)
"""Key of the maintenance of the whole site."""
MAX_REASON = 300


class Maintenance(models.Model):
    """Maintenance of a pool, or of the site if `pool` is None. Active between its begin and its end.

    `key` is the pool's primary key or `SITE`, and ensures at most one row for each.
    """

    key = models.UUIDField(primary_key=True, default=SITE, editable=False)
    pool = models.OneToOneField(
        Pool, null=True, blank=True, on_delete=models.CASCADE, related_name="maintenance"
    )
    begins_at = models.DateTimeField(help_text="Start. No new work starts from then on.")
    ends_at = models.DateTimeField(help_text="Planned end. New work is accepted again from then on.")
    reason = models.CharField(max_length=MAX_REASON, help_text="Why, in words. Shown to all users.")
    set_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    updated_at = models.DateTimeField(default=timezone.now, help_text="When it was set or changed last.")

    class Meta:
        ordering = ["begins_at", "key"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(ends_at__gt=models.F("begins_at")), name="maintenance_ends_after_it_begins"
            )
        ]

    def __str__(self) -> str:
        return self.reason

    @property
    def begun(self) -> bool:
        """Whether the maintenance has begun."""
        return self.begins_at <= timezone.now()

    @property
    def version_state(self) -> tuple[object, ...]:
        """The fields that operators set, for versions."""
        return (self.pk, self.begins_at, self.ends_at, self.reason)
