"""What the REST API itself has to remember."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class KeptAnswer(models.Model):
    """The answer to a request that came with an `Idempotency-Key`, kept for a day.

    `sealed` holds the answer, and a digest of what was asked: both may hold secrets.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    endpoint = models.CharField(max_length=300)
    key = models.CharField(max_length=120)
    sealed = models.TextField(default="")
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "endpoint", "key"], name="kept_answer_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.endpoint} {self.key}"
