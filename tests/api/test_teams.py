"""Me, teams and their members"""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from portal.common.events.models import Event
from portal.people.accounts.models import Membership, Team
from portal.quota.limits.models import Quota
from portal.workspaces.models import HomePlace
from tests.api.conftest import problem
from tests.factories import MembershipFactory, TeamFactory, WorkspaceFactory

pytestmark = pytest.mark.django_db


def test_me(api: Any, bob: Any, team: Any, as_user: Any) -> None:
    body = api(bob, "workspaces:connect").get("me").json()

    assert body["username"] == "bob"
    assert body["is_operator"] is False
    assert body["teams"] == [{"slug": "vision", "name": "Vision", "role": "member"}]
    assert body["scopes"] == ["workspaces:connect"]
    assert body["token"]["name"] == "test"
    session = as_user(bob).get("/api/v1/me").json()
    assert (session["scopes"], session["token"]) == (["all"], None)
    problem(api(None).get("me"), 401, "not_authenticated")


def test_users_see_their_own_teams(api: Any, bob: Any, charlie: Any, olga: Any, team: Any) -> None:
    rows = api(bob).get("teams").json()["results"]

    assert [(row["slug"], row["role"], row["member_count"]) for row in rows] == [("vision", "member", 2)]
    assert [row["slug"] for row in api(charlie).get("teams").json()["results"]] == ["robots"]
    seen = api(olga).get("teams").json()["results"]
    assert [(row["slug"], row["role"]) for row in seen] == [("robots", None), ("vision", None)]
    assert api(bob).get("teams/vision").json() == rows[0]
    problem(api(charlie).get("teams/vision"), 404, "not_found")
    problem(api(bob, "workspaces:read").get("teams"), 403, "permission_denied")


@pytest.mark.parametrize("count", [1, 50])
def test_query_count_is_constant(api: Any, bob: Any, count: int, django_assert_max_num_queries: Any) -> None:
    for _ in range(count):
        MembershipFactory(team=TeamFactory(), user=bob)
    program = api(bob)
    program.get("me")
    with django_assert_max_num_queries(3):
        assert len(program.get("teams").json()["results"]) == count


def test_only_operators_create_teams(api: Any, olga: Any, alice: Any) -> None:
    made = api(olga).post("teams", {"slug": "audio", "name": "Audio", "owner": "alice"})

    assert made.status_code == 201
    assert made["Location"] == "/api/v1/teams/audio"
    assert made.json()["member_count"] == 1
    assert Team.objects.get(slug="audio").memberships.get().user == alice
    own = api(olga).post("teams", {"slug": "robots"}).json()
    assert (own["role"], own["member_count"], own["archived_at"]) == ("owner", 1, None)
    problem(api(alice).post("teams", {"slug": "mine"}), 403, "not_allowed")
    assert "slug" in problem(api(olga).post("teams", {"slug": "audio"}), 400, "invalid")["errors"]
    assert "slug" in problem(api(olga).post("teams", {"slug": "No!"}), 400, "invalid")["errors"]
    assert (
        "owner" in problem(api(olga).post("teams", {"slug": "x", "owner": "zed"}), 400, "invalid")["errors"]
    )


def test_a_team_is_renamed_archived_and_restored(api: Any, alice: Any, bob: Any, team: Any) -> None:
    owner, member = api(alice), api(bob)
    workspace = WorkspaceFactory(owner=bob, team=team, state="pending")
    assert owner.send("PATCH", "teams/vision", {"name": " Seeing "}).json()["name"] == "Seeing"
    assert "name" in problem(owner.send("PATCH", "teams/vision", {"name": " "}), 400, "invalid")["errors"]
    problem(member.send("PATCH", "teams/vision", {"name": "Mine"}), 403, "not_allowed")

    contents = owner.get("teams/vision/contents").json()
    assert [contents[name] for name in ("members", "workspaces", "active", "homes")] == [2, 1, 1, 0]
    problem(member.post("teams/vision/archive"), 403, "not_allowed")
    for _ in range(2):
        assert owner.post("teams/vision/archive").json()["archived_at"]
    workspace.refresh_from_db()
    assert workspace.desired_state == "stopped"
    assert owner.get("teams/vision/contents").json()["active"] == 0
    for _ in range(2):
        assert owner.post("teams/vision/restore").json()["archived_at"] is None


def test_a_team_without_homes_is_deleted_at_once(api: Any, olga: Any, alice: Any, team: Any) -> None:
    operator = api(olga)
    problem(api(alice).delete("teams/vision"), 403, "not_allowed")
    problem(operator.delete("teams/vision"), 409, "team_not_archived")
    assert "homes" in problem(operator.delete("teams/vision?homes=some"), 400, "invalid")["errors"]
    assert operator.post("teams", {"slug": "typo"}).status_code == 201
    unused = Team.objects.get(slug="typo")
    Quota.objects.create(team=unused, resource="gpu:h100", quota=1000)
    assert operator.get("teams/typo/contents").json()["quotas"] == 1
    seen = operator.post("teams/typo/archive")["ETag"]
    problem(operator.delete("teams/typo", **{"If-Match": '"other"'}), 412, "changed_meanwhile")
    assert operator.delete("teams/typo", **{"If-Match": seen}).status_code == 204
    assert not Quota.objects.filter(team=unused).exists()
    data = Event.objects.get(kind="team.deleted").data
    assert (data["slug"], data["slug_in_reports"]) == ("typo", unused.slug_when_deleted)
    problem(operator.get("teams/typo"), 404, "not_found")
    problem(operator.delete("teams/typo"), 404, "not_found")
    problem(operator.get(f"teams/{unused.slug_when_deleted}"), 404, "not_found")
    assert operator.post("teams", {"slug": "typo"}).status_code == 201


def test_team_with_homes_is_deleted_after_its_homes(
    api: Any, olga: Any, bob: Any, team: Any, local_pool: Any
) -> None:
    operator = api(olga)
    node = local_pool.nodes.get()
    HomePlace.objects.create(owner=bob, team=team, pool=local_pool, node=node, since=timezone.now())
    operator.post("teams/vision/archive")
    assert "1 home folder" in problem(operator.delete("teams/vision"), 409, "team_has_homes")["detail"]
    for _ in range(2):
        answer = operator.delete("teams/vision?homes=delete")
        assert (answer.status_code, answer.json()["member_count"]) == (202, 0)
        assert answer.json()["deletion_started_at"]
    problem(operator.post("teams/vision/restore"), 409, "team_being_deleted")
    problem(operator.put("teams/vision/members/bob", {"role": "owner"}), 409, "team_being_deleted")
    problem(operator.post("teams/vision/service-accounts", {"name": "ci"}), 409, "team_being_deleted")
    assert "slug" in problem(operator.post("teams", {"slug": "vision"}), 400, "invalid")["errors"]
    problem(api(bob).get("teams/vision"), 404, "not_found")


def test_members(api: Any, alice: Any, bob: Any, charlie: Any, team: Any) -> None:
    owner = api(alice)

    assert owner.put("teams/vision/members/charlie", {"role": "owner"}).json()["role"] == "owner"
    assert owner.put("teams/vision/members/charlie/", {"role": "member"}).json()["role"] == "member"
    assert owner.put("teams/vision/members/charlie").status_code == 200
    rows = api(bob).get("teams/vision/members").json()["results"]
    assert {row["username"]: row["role"] for row in rows} == {
        "alice": "owner",
        "bob": "member",
        "charlie": "member",
    }
    response = owner.post("teams/vision/members/charlie/revoke")
    assert (response.status_code, response.content) == (204, b"")
    problem(owner.post("teams/vision/members/charlie/revoke"), 404, "not_found")


def test_refusals_for_members(api: Any, alice: Any, bob: Any, charlie: Any, team: Any) -> None:
    problem(api(bob).put("teams/vision/members/charlie", {"role": "member"}), 403, "not_allowed")
    problem(api(charlie).put("teams/vision/members/charlie", {"role": "owner"}), 404, "not_found")
    problem(api(alice).put("teams/vision/members/zed", {"role": "member"}), 400, "invalid")
    problem(api(alice).put("teams/vision/members/bob", {"role": "king"}), 400, "invalid")
    problem(api(alice).put("teams/vision/members/alice", {"role": "member"}), 409, "conflict")
    problem(api(alice).post("teams/vision/members/alice/revoke"), 409, "conflict")
    problem(api(alice, "teams:read").post("teams/vision/members/bob/revoke"), 403, "permission_denied")
    WorkspaceFactory(owner=bob, team=team)
    problem(api(alice).post("teams/vision/members/bob/revoke"), 409, "conflict")
    assert Membership.objects.filter(team=team).count() == 2


def test_a_member_may_leave(api: Any, bob: Any, team: Any) -> None:
    assert api(bob).post("teams/vision/members/bob/revoke").status_code == 204
    problem(api(bob).get("teams/vision"), 404, "not_found")
