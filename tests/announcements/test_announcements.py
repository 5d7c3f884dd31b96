"""Announcements: visibility, dismissal per user, and expiry."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event
from portal.fleet.announcements import selectors, services
from portal.fleet.announcements.codes import AnnouncementCode
from portal.fleet.announcements.models import Announcement
from portal.fleet.inventory import maintenance
from portal.people.accounts.models import User
from tests.factories import FlavorFactory

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def announce(text: str = "New driver on Monday.", **fields: Any) -> Announcement:
    return services.create(actor=SYSTEM, text=text, **fields)


def texts(user: User) -> list[str]:
    return [banner.text for banner in selectors.banners_for(user)]


def test_information_is_dismissed_per_user(as_user, alice, bob):
    row = announce()
    browser = as_user(alice)
    assert row.text in browser.get("/").content.decode()
    done = browser.post(f"/announcements/{row.pk}/dismiss/", {"next": "/queue/"})
    assert (done.status_code, done["Location"]) == (302, "/queue/")
    assert (texts(alice), texts(bob)) == ([], [row.text])
    services.change(actor=SYSTEM, announcement=row, fields={"text": "New driver on Friday."})
    assert texts(alice) == ["New driver on Friday."]


def test_a_warning_cannot_be_dismissed(alice):
    row = announce(kind="warning")
    with pytest.raises(StateConflict) as refused:
        services.dismiss(actor=alice, announcement=row)
    assert refused.value.reason.code is AnnouncementCode.NOT_DISMISSIBLE
    assert texts(alice) == [row.text]


def test_announcement_is_shown_between_begin_and_end(alice, clock):
    now = timezone.now()
    announce("Later", begins_at=now + HOUR, ends_at=now + 2 * HOUR)
    shown = []
    for _ in range(3):
        shown.append(texts(alice))
        clock.shift(3600)
    assert shown == [[], ["Later"], []]


def test_a_pool_is_shown_to_users_whose_teams_can_use_it(pool, team, alice, charlie, olga):
    Flavor.objects.filter(pool=pool).update(enabled=False)
    FlavorFactory(pool=pool, restricted=True).teams.add(team)
    row = announce("New cables", pool=pool)
    now = timezone.now()
    maintenance.set_maintenance(actor=SYSTEM, pool=pool, ends_at=now + HOUR, reason="New switch.")
    assert texts(alice) == texts(olga) == ["New switch.", "New cables"]
    assert texts(charlie) == []
    assert not selectors.announcements_for(charlie).exists()
    assert list(selectors.announcements_for(alice)) == [row]


def test_planned_maintenance_comes_first_and_query_count_is_constant(alice):
    now = timezone.now()
    for number in range(20):
        announce(f"{number}", kind="information" if number % 2 else "warning")
    maintenance.set_maintenance(
        actor=SYSTEM, pool=None, begins_at=now + HOUR, ends_at=now + 2 * HOUR, reason="New switch."
    )
    with CaptureQueriesContext(connection) as queries:
        banners = selectors.banners_for(alice)
    assert len(queries) == 3
    assert (len(banners), banners[0].text, banners[0].begun) == (21, "New switch.", False)
    assert [banner.kind for banner in banners[1:11]] == ["warning"] * 10


def test_text_is_plain_bounded_and_escaped(as_user, alice):
    for text, code in (("  ", AnnouncementCode.TEXT_MISSING), ("x" * 501, AnnouncementCode.TEXT_TOO_LONG)):
        with pytest.raises(InvalidInput) as refused:
            announce(text)
        assert [reason.code for reason in refused.value.extra["errors"]["text"]] == [code]
    announce("<script>alert(1)</script>")
    assert "<script>alert(1)" not in as_user(alice).get("/").content.decode()


def test_only_operators_write_and_every_write_is_logged(alice, olga):
    with pytest.raises(NotAllowed):
        services.create(actor=alice, text="Hello")
    row = services.create(actor=olga, text="Hello")
    services.end(actor=olga, announcement=row)
    services.delete(actor=olga, announcement=row)
    kinds = list(
        Event.objects.filter(kind__startswith="announcement.").order_by("pk").values_list("kind", flat=True)
    )
    assert kinds == ["announcement.created", "announcement.ended", "announcement.deleted"]
