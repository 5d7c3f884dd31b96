"""Models of trust rules and token exchanges."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models

from portal.people.accounts.models import ApiToken, User


class TrustRule(models.Model):
    """Tokens of `issuer` for `audience` that meet all `conditions` are exchanged for tokens of `account`.

    `conditions` are JSON objects with `claim`, `match` and `value` (`exchange.conditions`).
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    account = models.ForeignKey(User, on_delete=models.CASCADE, related_name="trust_rules")
    name = models.CharField(max_length=80)
    issuer = models.CharField(
        max_length=255, db_index=True, help_text="URL of the issuer that signs the tokens."
    )
    audience = models.CharField(max_length=255, help_text="Audience that the tokens must have.")
    conditions = models.JSONField(default=list)
    scopes = models.JSONField(default=list)
    lifetime_s = models.PositiveIntegerField(
        help_text="Lifetime of a token after its exchange and each renewal, in seconds."
    )
    max_lifetime_s = models.PositiveIntegerField(
        help_text="Total lifetime of a token with all renewals, in seconds."
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="When it was last used.")

    class Meta:
        ordering = ["created_at", "id"]

    def __str__(self) -> str:
        return f"{self.name} of {self.account_id}"

    @property
    def max_hours(self) -> float:
        """The maximum total lifetime of a token, in hours."""
        return round(self.max_lifetime_s / 3600, 1)


class Exchange(models.Model):
    """A token of another issuer that has been exchanged.

    Only a request with the same idempotency key can exchange it again, for the same `token`. `digest` is the
    SHA-256 of its issuer and `jti`, `key_digest` that of the key, empty without one. After `expires_at` the
    token is expired anyway.
    """

    digest = models.CharField(max_length=64, unique=True, editable=False)
    key_digest = models.CharField(max_length=64, blank=True, editable=False)
    rule = models.ForeignKey(TrustRule, null=True, on_delete=models.SET_NULL, related_name="exchanges")
    token = models.OneToOneField(ApiToken, null=True, on_delete=models.SET_NULL, related_name="exchange")
    at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"exchange at {self.at}"
