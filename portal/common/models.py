"""What the REST API itself has to remember."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class IdempotencyRecord(models.Model):
    """What became of the first request with an idempotency key, kept for a day.

    `endpoint` is the method and path of a request to REST, or the name of an act of a service. `sealed` holds
    the answer and a digest of the request: both may hold secrets.
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
