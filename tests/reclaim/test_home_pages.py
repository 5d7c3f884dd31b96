"""Pages and REST of unused and archived homes."""

from __future__ import annotations

import pytest
from django.test import Client

from portal.reclaim import homes
from portal.reclaim.models import HomeStay
from portal.workspaces.homes import archives as home_archives
from portal.workspaces.models import HomeArchive, HomePlace
from tests import sites
from tests.factories import make_token
from tests.reclaim.test_homes import answer, archive_and_empty, order, place, pool, unused, workspace

JSON = "application/json"
pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines
_fixtures = (place, pool, workspace)


def page(browser, url: str) -> str:
    found = browser.get(url)
    assert found.status_code == 200
    return " ".join(found.content.decode().split())


def test_pages_show_unused_time_threshold_and_remaining_time(workspace, place, bob, as_user):
    browser = as_user(bob)
    unused(place, 50)
    assert "Unused for 50 days of 90 days. Archived in 40 days." in page(browser, "/homes/")
    assert 'id="home-notes"' not in page(browser, "/")
    unused(place, 80)
    homes.run()
    at = f"/workspaces/{workspace.pk}/"
    for url in ("/", "/homes/", at, f"{at}files/", f"{at}files/archives/"):
        text = page(browser, url)
        assert "Unused for 80 days of 90 days. Archived in 14 days." in text, url
        assert f'id="keep-home-{place.pk}"' in text
    kept = browser.post(f"/homes/{place.pk}/keep/")
    assert kept["Location"] == "/homes/" and HomeStay.objects.get().warned_s is None
    assert 'id="home-notes"' not in page(browser, at)


def test_home_is_archived_and_restored_on_the_pages(workspace, place, bob, olga, as_user, sent):
    archive = archive_and_empty(place, sent)
    homes.run()
    unused(place, 10)
    browser, at = as_user(bob), f"/workspaces/{workspace.pk}/"
    for url in ("/", "/homes/", at, f"{at}files/archives/"):
        text = page(browser, url)
        assert (
            "Archived for 10 days of 300 days. After that, administrators can delete it permanently." in text
        ), url
        assert f'id="restore-home-{place.pk}"' in text
    text = page(browser, f"{at}files/archives/")
    assert "the only copy of your home folder" in text
    assert f"archives/{archive.pk}/delete/" not in text and "Create archive" not in text
    listed = page(as_user(olga), "/homes/archived/")
    assert "bob" in listed and "/delete/" not in listed
    assert browser.post(f"/homes/{place.pk}/restore/")["Location"] == "/homes/"
    HomeArchive.objects.update(stream_bytes=4096)
    given = order(sent)
    assert answer(given, bytes_done=1024)
    assert "Restoring: 1.0\xa0KB of 4.0\xa0KB" in browser.get("/homes/").content.decode()
    HomeArchive.objects.update(lease="", lease_expires_at=None)
    assert browser.post(f"/homes/{place.pk}/keep/").status_code == 302
    assert HomeArchive.objects.get().state == "restoring", "keeping it does not end that"


def test_administrator_deletes_a_home_with_name_and_reason(place, ada, as_user, sent):
    archive_and_empty(place, sent)
    homes.run()
    browser, url = as_user(ada), f"/homes/{place.pk}/delete/"
    assert "the option to restore it" in page(browser, url)
    early = browser.post(url, {"confirm": "vision/bob", "note": "gone"}, follow=True)
    assert "cannot be deleted yet" in early.content.decode()
    unused(place, 301, told_days=20)
    assert f'href="{url}"' in page(browser, "/homes/archived/")
    assert browser.post(url, {"confirm": "vision/x", "note": "gone"}).status_code == 400
    done = browser.post(url, {"confirm": "vision/bob", "note": "gone"})
    assert done["Location"] == "/homes/archived/"
    assert HomeArchive.objects.get().state == "deleting"
    home_archives.sweep()


def with_token(user) -> Client:
    return Client(headers={"Authorization": f"Bearer {make_token(user)[1]}"})


def test_unused_homes_over_rest(place, bob, ada, sent):
    bobs, adas = with_token(bob), with_token(ada)
    unused(place, 60)
    (row,) = bobs.get("/api/v1/homes").json()["results"]
    assert row == bobs.get(f"/api/v1/homes/{place.pk}").json() | {"due_at": row["due_at"]}
    assert (row["unused_s"], row["limit_s"]) == (60 * 86_400, 90 * 86_400)
    assert not row["warned"] and row["archive"] is None
    archive_and_empty(place, sent)
    homes.run()
    unused(place, 301, told_days=20)
    (row,) = adas.get("/api/v1/homes?archived=true").json()["results"]
    assert row["deletable"] and row["archive"]["state"] == "ready" and row["archive"]["away_at"]
    assert bobs.post(f"/api/v1/homes/{place.pk}/delete", {"confirm": "vision/bob"}, JSON).status_code == 403
    assert adas.post(f"/api/v1/homes/{place.pk}/delete", {"confirm": "bob"}, JSON).status_code == 400
    restored = bobs.post(f"/api/v1/homes/{place.pk}/restore")
    assert restored.status_code == 200 and restored.json()["archive"]["state"] == "restoring"
    early = adas.post(f"/api/v1/homes/{place.pk}/delete", {"confirm": "vision/bob"}, JSON)
    assert early.status_code == 409
    assert HomePlace.objects.exists()
