"""Models of the REST API itself."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class IdempotencyRecord(models.Model):
    """Response to the first request with an idempotency key, kept for a day.

    `endpoint` is the method and path of a REST request, or the name of a service operation. `sealed` holds
    the response and a digest of the request, encrypted because both may contain secrets.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    endpoint = models.CharField(max_length=300)
    key = models.CharField(max_length=120)
    sealed = models.TextField(default="")
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "endpoint", "key"], name="idempotency_record_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.endpoint} {self.key}"
