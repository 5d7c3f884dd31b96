"""Helpers of quota request tests."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.people.accounts.models import Team, User
from portal.quota.requests.models import QuotaRequest
from portal.quota.requests.services import requests


def in_hours(hours: float) -> datetime:
    return timezone.now() + timedelta(hours=hours)


def ask(actor: User, team: Team, **fields: Any) -> QuotaRequest:
    """Request one H100 for a day by default."""
    arguments: dict[str, Any] = {
        "kind": "quota",
        "resource": "gpu:h100",
        "amount": 1000,
        "until": in_hours(24),
        "note": "For a test",
    }
    return requests.create_request(actor=actor, team=team, **{**arguments, **fields})
