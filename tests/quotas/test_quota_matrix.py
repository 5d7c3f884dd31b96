"""The quota matrix: cells, preview, save and visibility."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from portal.common.actors import SYSTEM
from portal.people.accounts.models import Team
from portal.quota.limits.models import Quota
from portal.quota.limits.services import limits
from portal.workspaces.lifecycle import State
from tests.factories import TeamFactory, UserFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db
URL = "/quotas/"
H100 = "gpu:h100"
SEEN = f"q/vision/{H100}/4000"


def words(answer: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())).split())


def fields(answer: Any) -> dict[str, str]:
    return dict(re.findall(r'name="(q/[^"]+)" value="([^"]*)"', answer.content.decode()))


@pytest.fixture
def vision(team: Team, bob: Any, local_pool: Any) -> Team:
    limits.set_quota(actor=SYSTEM, team=team, resource=H100, quota=4000)
    WorkspaceFactory(owner=bob, team=team, state=State.RUNNING, pool=local_pool, amounts={H100: 3000})
    return team


def test_changed_cells_are_previewed_then_saved(as_user: Any, olga: Any, vision: Team) -> None:
    client = as_user(olga)
    page = client.get(URL)
    assert fields(page)[SEEN] == "4" and "3 in use" in words(page)
    preview = client.post(URL, {**fields(page), SEEN: "2.5"})
    assert "Change 1 quota?" in words(preview) and "0.5 over the limit" in words(preview)
    assert fields(preview) == {SEEN: "2.5"} and Quota.objects.get().quota == 4000
    again = client.post(URL, {**fields(preview), "edit": "1"})
    assert fields(again)[SEEN] == "2.5" and "was 4" in words(again)
    saved = client.post(f"{URL}?q=vis", {**fields(preview), "save": "1"}, follow=True)
    assert saved.redirect_chain == [("/quotas/?q=vis", 302)] and "1 quota saved." in words(saved)
    assert Quota.objects.get().quota == 2500
    emptied = client.post(URL, {f"q/vision/{H100}/2500": " ", "save": "1"}, follow=True)
    assert emptied.status_code == 200 and not Quota.objects.exists()


def test_concurrent_change_is_shown_before_saving(as_user: Any, olga: Any, vision: Team) -> None:
    client = as_user(olga)
    limits.set_quota(actor=SYSTEM, team=vision, resource=H100, quota=6000)
    refused = client.post(URL, {SEEN: "2", "save": "1"})
    assert refused.status_code == 412 and "H100 was 4, is now 6" in words(refused)
    assert Quota.objects.get().quota == 6000
    client.post(URL, {**fields(refused), "save": "1"})
    assert Quota.objects.get().quota == 2000, "after the present value was shown, it can be saved"


def test_invalid_input_stays_in_its_cell(as_user: Any, olga: Any, vision: Team) -> None:
    client = as_user(olga)
    other = "q/vision/cpu_milli/-"
    wrong = client.post(URL, {SEEN: "four", other: "2", "save": "1"})
    assert wrong.status_code == 400 and "Enter a number of at least 0" in words(wrong)
    assert fields(wrong)[SEEN] == "four" and fields(wrong)[other] == "2"
    assert "No quota was changed" in words(client.post(URL, {SEEN: "4"}))
    assert "has been deleted" in words(client.post(URL, {"q/gone/cpu_milli/-": "1"}))
    assert client.post(URL, {"q/vision/cpu_milli/x": "1"}).status_code == 400
    assert "Unknown resource" in words(client.post(URL, {"q/vision/elephants/-": "1"}))
    assert Quota.objects.count() == 1


def test_members_see_only_their_teams(as_user: Any, alice: Any, vision: Team) -> None:
    other = TeamFactory(slug="nlp", name="Language")
    limits.set_quota(actor=SYSTEM, team=other, resource=H100, quota=1000)
    page = as_user(alice).get(URL)
    assert "3 of 4" in words(page) and "Language" not in words(page) and "All teams" not in words(page)
    assert not fields(page)
    assert "Quotas of your teams appear here" in words(as_user(UserFactory(username="newcomer")).get(URL))


def test_queries_of_the_matrix_do_not_grow_with_teams(
    as_user: Any, olga: Any, vision: Team, django_assert_max_num_queries: Any
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    client = as_user(olga)
    client.get(URL)
    with CaptureQueriesContext(
        connection,
    ) as few:
        client.get(URL)
    for number in range(60):
        new = TeamFactory(slug=f"t{number}", name=f"Team {number}")
        Quota.objects.create(team=new, resource=H100, quota=1000)
    with django_assert_max_num_queries(len(few)):
        page = client.get(URL)
    assert page.content.decode().count("<tr>") <= 27 and "Page 1 of 3" in words(page)
    found = client.get(URL, {"q": "team 59", "resource": [H100, "memory_mib", "no such"]})
    assert [name.split("/")[1:3] for name in fields(found)] == [["t59", H100], ["t59", "memory_mib"]]
