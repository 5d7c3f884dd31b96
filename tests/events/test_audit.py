"""The audit log: seals, page, export and pruning."""

from __future__ import annotations

import csv
import datetime as dt
import html
import io
import json
import re

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.events import sealing, services
from portal.common.events.kinds import AuditKind
from portal.common.events.models import AuditSeal, Event, EventTarget, TargetKind
from portal.common.events.sealing import Flaw
from tests.factories import UserFactory

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
LATER = dt.timedelta(minutes=6)


def write(count: int, **more) -> list[Event]:
    kind = more.pop("kind", AuditKind.USER_CHANGED)
    return [
        services.record(actor=SYSTEM, kind=kind, message=f"did thing {n}", data={"n": n}, **more)
        for n in range(count)
    ]


def seal(**more) -> int:
    return sealing.seal_entries(now=timezone.now() + LATER, **more)


def flaws() -> list[Flaw]:
    return [finding.flaw for finding in sealing.verify().findings]


@pytest.fixture
def sealed(monkeypatch) -> list[Event]:
    """Seven entries under three seals."""
    monkeypatch.setattr(sealing, "ENTRIES_IN_A_SEAL", 3)
    entries = write(7, targets=[services.Target(TargetKind.DEVICE, "GPU-1")])
    assert [seal(), seal(), seal(), seal()] == [3, 3, 1, 0]
    return entries


# --- Seals ------------------------------------------------------------------------------------------


def test_recent_entries_are_not_sealed():
    write(2)
    assert sealing.seal_entries() == 0
    assert seal() == 2
    found = sealing.verify()
    assert (found.seals, found.entries, found.open_entries, found.findings) == (1, 2, 0, ())
    assert found.head == AuditSeal.objects.get().digest


def test_entries_are_never_changed_by_the_portal():
    (entry,) = write(1)
    entry.message = "did something else"
    with pytest.raises(TypeError):
        entry.save()


@pytest.mark.parametrize(
    ("harm", "flaw"),
    [
        (lambda e: Event.objects.filter(pk=e.pk).update(message="nothing"), Flaw.ENTRIES_CHANGED),
        (lambda e: Event.objects.filter(pk=e.pk).update(data={"n": 99}), Flaw.ENTRIES_CHANGED),
        (lambda e: Event.objects.filter(pk=e.pk).update(at=e.at - LATER), Flaw.ENTRIES_CHANGED),
        (lambda e: Event.objects.filter(pk=e.pk).update(address="192.0.2.1"), Flaw.ENTRIES_CHANGED),
        (lambda e: EventTarget.objects.filter(event=e).update(key="GPU-2"), Flaw.ENTRIES_CHANGED),
        (lambda e: Event.objects.filter(pk=e.pk).delete(), Flaw.ENTRIES_MISSING),
    ],
)  # fmt: skip
def test_changed_database_entry_breaks_the_seal(sealed, harm, flaw):
    harm(sealed[4])
    (finding,) = sealing.verify().findings
    assert (finding.flaw, finding.number) == (flaw, 2)
    assert finding.first_id <= sealed[4].pk <= finding.last_id


def test_inserted_entry_breaks_the_seal(sealed):
    gap = sealed[4].pk
    Event.objects.filter(pk=gap).delete()
    write(2)
    newest = Event.objects.first()
    Event.objects.filter(pk=newest.pk).update(id=gap)
    EventTarget.objects.create(event_id=gap, kind=TargetKind.DEVICE, key="GPU-1")
    assert flaws() == [Flaw.ENTRIES_CHANGED]


def test_seal_needs_the_key(sealed, settings):
    Event.objects.filter(pk=sealed[4].pk).update(message="nothing")
    second = AuditSeal.objects.get(number=2)
    key, settings.SECRET_KEY = settings.SECRET_KEY, "of whoever has only the database"
    second.entries_digest = sealing._digest_of(second.first_id, second.last_id)[0]
    first = AuditSeal.objects.get(number=1)
    second.digest = sealing._seal_digest(second, first.digest, settings.SECRET_KEY)
    second.save()
    settings.SECRET_KEY = key
    # The next seal depends on the original one.
    assert flaws() == [Flaw.SEAL_CHANGED, Flaw.SEAL_CHANGED]


def test_seal_with_a_previous_key_is_valid(sealed, settings):
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "the new one"
    assert flaws() == []


def test_missing_seal_and_truncated_log_are_detected(sealed, capsys):
    head = sealing.verify().head
    call_command("verify_audit", "--head", head)
    assert "7 entries under 3 seals, 0 not sealed yet." in capsys.readouterr().out
    last = AuditSeal.objects.get(number=3)
    Event.objects.filter(pk__gte=last.first_id).delete()
    last.delete()
    call_command("verify_audit")
    with pytest.raises(CommandError, match="the newest seals were deleted"):
        call_command("verify_audit", "--head", head)
    AuditSeal.objects.get(number=1).delete()
    assert flaws() == [Flaw.SEAL_MISSING]
    with pytest.raises(CommandError, match="Seal 2: the previous seal"):
        call_command("verify_audit")


def test_deleted_references_keep_the_seal_valid(team, pool):
    user = UserFactory()
    services.record(actor=user, kind=AuditKind.USER_CHANGED, message="x", team=team, pool=pool)
    seal()
    user.delete()
    Event.objects.update(team=None, pool=None)
    assert flaws() == []


def test_pruned_entries_keep_their_seal(sealed, settings):
    later = timezone.now() + dt.timedelta(days=31)
    assert sealing.prune(now=later) == 0
    settings.BERTH_AUDIT_KEEP_DAYS = 30
    assert [sealing.prune(now=later - dt.timedelta(days=2)), sealing.prune(now=later)] == [0, 3]
    found = sealing.verify()
    assert (found.findings, found.seals, found.entries) == ((), 3, 4)
    # Entries inserted in their place are detected.
    (late,) = write(1)
    Event.objects.filter(pk=late.pk).update(id=sealed[0].pk)
    assert flaws() == [Flaw.ENTRIES_ADDED]


# --- Page and export ------------------------------------------------------------------------------


@pytest.fixture
def admin():
    return UserFactory(username="root", is_superuser=True)


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("", {"first", "second", "third"}),
        ("?actor=ada", {"first"}),
        ("?action=user.", {"first", "second"}),
        ("?action=user.invited", {"second"}),
        ("?object=GPU-7", {"third"}),
        ("?object=vision", {"second"}),
        ("?actor=nobody", set()),
    ],
)
def test_page_filters_entries(admin, team, as_user, query, seen):
    ada = UserFactory(username="ada")
    services.record(actor=ada, kind=AuditKind.USER_CHANGED, message="did the first")
    services.record(actor=SYSTEM, kind=AuditKind.USER_INVITED, message="did the second", team=team)
    gpu = services.Target(TargetKind.DEVICE, "GPU-7")
    services.record(actor=SYSTEM, kind=AuditKind.DEVICE_CORDONED, message="did the third", targets=[gpu])
    page = as_user(admin).get(f"/audit/{query}").content.decode()
    assert {word for word in ("first", "second", "third") if f"did the {word}" in page} == seen
    assert ("No matching entries" in page) == (not seen)


def test_an_entry_links_to_its_like_within_the_filters(admin, team, as_user):
    ada = UserFactory(username="ada")
    services.record(actor=ada, kind=AuditKind.USER_CHANGED, message="did it", team=team)
    services.record(actor=SYSTEM, kind=AuditKind.USER_CHANGED, message="did it too")
    browser = as_user(admin)
    page = browser.get("/audit/?action=user.&page=1").content.decode()
    links = set(re.findall(r'href="(\?action=user[^"]*)"', page))
    assert links == {
        "?action=user.&amp;actor=ada",
        "?action=user.&amp;object=vision",
        "?action=user.changed",
    }
    for link in links:
        assert "did it" in browser.get(f"/audit/{html.unescape(link)}").content.decode()


def test_page_filters_by_date_and_refuses_invalid_dates(admin, as_user):
    write(1)
    browser = as_user(admin)
    today = timezone.localdate()
    for query, there in (
        (f"since={today}", True),
        (f"since={today + dt.timedelta(days=1)}", False),
        (f"until={today}", False),
        (f"until={today + dt.timedelta(days=1)}", True),
    ):
        assert ("did thing 0" in browser.get(f"/audit/?{query}").content.decode()) == there, query
    wrong = browser.get("/audit/?since=yesterday")
    assert wrong.status_code == 400 and "since" in wrong.content.decode()


def test_page_query_count_is_constant(admin, as_user, django_assert_max_num_queries):
    write(120)
    browser = as_user(admin)
    browser.get("/audit/")
    with django_assert_max_num_queries(12):
        page = browser.get("/audit/?page=2").content.decode()
    assert "did thing 50" in page and "51–100" in page


def test_export_contains_filtered_entries_and_is_audited(admin, as_user):
    write(3)
    services.record(actor=SYSTEM, kind=AuditKind.USER_INVITED, message="=HYPERLINK(1)", reason="+1")
    browser = as_user(admin)
    answer = browser.get("/audit/export/csv/?action=user.")
    assert answer["Content-Type"].startswith("text/csv")
    assert 'filename="berth-audit-' in answer["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    assert [row["message"] for row in rows] == [*(f"did thing {n}" for n in range(3)), "'=HYPERLINK(1)"]
    assert rows[3]["reason"] == "'+1" and json.loads(rows[1]["data"]) == {"n": 1}
    taken = Event.objects.get(kind=AuditKind.AUDIT_EXPORTED)
    assert (taken.actor, taken.data) == (admin, {"format": "csv", "filters": {"action": "user."}})
    lines = browser.get("/audit/export/jsonl/").getvalue().decode().splitlines()
    entries = [json.loads(line) for line in lines]
    # The second export is an entry as well and may be included.
    ids = [entry["id"] for entry in entries]
    before = Event.objects.filter(pk__lte=taken.pk).order_by("pk")
    assert ids[: before.count()] == list(before.values_list("pk", flat=True))
    assert entries[3]["message"] == "=HYPERLINK(1)"
    assert browser.get("/audit/export/xml/").status_code == 404


def test_other_roles_cannot_read_the_audit_log(alice, olga, petra, as_user):
    for user in (alice, olga, petra):
        browser = as_user(user)
        for url in ("/audit/", "/audit/export/csv/", "/audit/export/jsonl/"):
            assert browser.get(url).status_code == 403, (user, url)
    assert not Event.objects.filter(kind=AuditKind.AUDIT_EXPORTED).exists()
