"""The limit on announcements under concurrency."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import StateConflict
from portal.fleet.announcements import services
from portal.fleet.announcements.codes import AnnouncementCode
from portal.fleet.announcements.models import Announcement
from tests.races import at_once

pytestmark = pytest.mark.django_db(transaction=True)


def test_last_slot_is_taken_once(monkeypatch):
    monkeypatch.setattr(services, "MAX_ANNOUNCEMENTS", 2)
    services.create(actor=SYSTEM, text="First", ends_at=timezone.now() + timedelta(hours=1))
    outcomes = at_once([lambda: services.create(actor=SYSTEM, text="Second") for _ in range(4)])
    refused = [outcome for outcome in outcomes if isinstance(outcome, StateConflict)]
    assert [error.reason.code for error in refused] == [AnnouncementCode.TOO_MANY] * 3, outcomes
    assert Announcement.objects.count() == 2
