"""Search by POST: the same results and refusals as by GET."""

from __future__ import annotations

import pytest

from portal.people.accounts.models import User

pytestmark = pytest.mark.django_db
SEARCH = "urn:ietf:params:scim:api:messages:2.0:SearchRequest"


@pytest.fixture
def people(idp):
    made = {name: idp.user(name, active=True) for name in ("gina", "gus", "hal")}
    idp.group("vision", made["gina"]["id"])
    return made


def search(idp, path="Users", status=200, **given):
    return idp.post(f"{path}/.search", {"schemas": [SEARCH], **given}, status)


def test_search_equals_the_list(idp, people):
    assert search(idp) == idp.get("Users")
    assert search(idp, "Groups") == idp.get("Groups")
    found = search(idp, filter='userName sw "g"', startIndex=2, count=1, attributes=["userName"])
    assert found == idp.get("Users?filter=userName%20sw%20%22g%22&startIndex=2&count=1&attributes=userName")
    assert (found["totalResults"], [row["userName"] for row in found["Resources"]]) == (2, ["gus"])
    assert set(found["Resources"][0]) == {"schemas", "id", "userName"}
    [group] = search(idp, "Groups", excludedAttributes=["members"])["Resources"]
    assert "members" not in group
    assert search(idp, FILTER='userName eq "hal"', count=None)["totalResults"] == 1


def test_search_changes_no_users(idp, people):
    before = list(User.objects.order_by("pk").values())
    search(idp, userName="mallory", active=False, Operations=[{"op": "remove", "path": "active"}])
    assert list(User.objects.order_by("pk").values()) == before


@pytest.mark.parametrize(
    "given",
    [
        {"filter": ["x"]}, {"filter": {"$ne": ""}}, {"filter": 5}, {"count": "1"}, {"count": True},
        {"count": 1.5}, {"startIndex": [1]}, {"attributes": "userName"}, {"attributes": [1]},
        {"excludedAttributes": {"a": 1}},
    ],
)  # fmt: skip
def test_parameter_of_a_wrong_type_is_refused(idp, given):
    assert search(idp, status=400, **given)["scimType"] == "invalidValue"


def test_invalid_filter_is_refused_without_queries(idp):
    for text in ("userName", "(" * 500 + "a pr" + ")" * 500, 'password eq "x"', "x" * 5000):
        assert search(idp, status=400, filter=text)["scimType"] == "invalidFilter"


def test_page_size_is_limited(idp, people):
    assert search(idp, count=10**9)["itemsPerPage"] == 3
    assert search(idp, count=-5)["itemsPerPage"] == 0
    assert search(idp, startIndex=-(10**9), count=1)["startIndex"] == 1


@pytest.mark.parametrize("body", [[], "x", {}, {"schemas": []}, {"schemas": ["urn:other"]}])
def test_invalid_search_body_is_refused(idp, body):
    assert idp.post("Users/.search", body, 400)["scimType"] == "invalidSyntax"


def test_search_requires_post(idp):
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        assert idp.ask(method, "Users/.search", {"schemas": [SEARCH]}).status_code == 405


def test_accounts_not_managed_by_scim_are_not_found(idp, bob, people):
    assert search(idp, filter='userName eq "bob"')["totalResults"] == 0


def test_search_over_both_types_returns_users_then_groups(idp, people):
    found = idp.post(".search", {"schemas": [SEARCH]}, 200)
    assert [row.get("userName") or row["displayName"] for row in found["Resources"]] == [
        "gina", "gus", "hal", "vision",
    ]  # fmt: skip
    page = idp.post(".search", {"schemas": [SEARCH], "startIndex": 3, "count": 2, "attributes": ["id"]}, 200)
    assert (page["totalResults"], page["startIndex"], page["itemsPerPage"]) == (4, 3, 2)
    assert [row["id"] for row in page["Resources"]] == [row["id"] for row in found["Resources"][2:]]
    assert idp.post(".search", {"schemas": [SEARCH], "startIndex": 5}, 200)["Resources"] == []


def test_filter_over_both_types_matches_the_type_with_the_attribute(idp, people):
    def names(text: str) -> list[str]:
        found = idp.post(".search", {"schemas": [SEARCH], "filter": text}, 200)
        return [row.get("userName") or row["displayName"] for row in found["Resources"]]

    assert names('userName sw "g"') == ["gina", "gus"]
    assert names(f'members eq "{people["gina"]["id"]}"') == ["vision"]
    assert names('displayName eq "vision" or id pr') == ["gina", "gus", "hal", "vision"]
    for text in ("colour pr", "userName eq"):
        refused = idp.post(".search", {"schemas": [SEARCH], "filter": text}, 400)
        assert refused["scimType"] == "invalidFilter"


def test_response_equals_the_request_and_the_schema(idp, people):
    """As compared by scim2-tester: an extra sub-attribute would be a difference."""
    user = idp.patch(
        f"Users/{people['gus']['id']}",
        {"op": "add", "path": "name", "value": {"givenName": "Gus", "familyName": "G"}},
        {
            "op": "add",
            "path": "emails",
            "value": [{"value": "g@example.org", "type": "work", "primary": True}],
        },
    )
    assert user["name"] == {"givenName": "Gus", "familyName": "G"}
    for kind, primary in (("home", False), ("other", True), ("work", False), ("work", True)):
        sent = [{"value": "g@example.org", "type": kind, "primary": primary}]
        assert (
            idp.patch(f"Users/{user['id']}", {"op": "replace", "path": "emails", "value": sent})["emails"]
            == sent
        )
        assert idp.get(f"Users/{user['id']}")["emails"] == sent
    assert "emails" not in idp.patch(f"Users/{user['id']}", {"op": "remove", "path": "emails"})
    [group] = idp.get("Groups")["Resources"]
    [member] = group["members"]
    assert set(member) == {"value", "type", "$ref"}
    assert "members" not in idp.patch(f"Groups/{group['id']}", {"op": "remove", "path": "members"})
    [members] = [
        attribute
        for attribute in idp.get("Schemas/urn:ietf:params:scim:schemas:core:2.0:Group")["attributes"]
        if attribute["name"] == "members"
    ]
    mutability = {sub["name"]: sub["mutability"] for sub in members["subAttributes"]}
    assert mutability == dict.fromkeys(member, "immutable")
