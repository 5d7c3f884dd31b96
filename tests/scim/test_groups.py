"""Groups over SCIM, and memberships and roles granted by rules for them."""

from __future__ import annotations

import pytest

from portal.common.actors import SYSTEM
from portal.common.events.models import Event
from portal.people.accounts import deactivation, services, users
from portal.people.accounts.models import Membership, Role, Team, User
from portal.people.identity.models import GivenPlace
from portal.people.scim import grants
from portal.people.scim.models import ScimGroup
from tests.factories import TeamFactory
from tests.fixtures import PROVIDER
from tests.scim.conftest import GROUP, USER

pytestmark = pytest.mark.django_db
RULES = """
[scim]
[[scim.rules]]
group = "Vision"
team = "vision"
[[scim.rules]]
group_pattern = "(?P<team>[a-z]+)-owners"
team = '\\g<team>'
role = "owner"
[[scim.rules]]
group = "E-77"
site_role = "operator"
"""


def place(name: str, team: str = "vision") -> str:
    """Return the role in a team, or an empty string."""
    return (
        Membership.objects.filter(user__username=name, team__slug=team).values_list("role", flat=True).first()
        or ""
    )


@pytest.fixture
def vision(db) -> Team:
    return TeamFactory(slug="vision", name="Vision")


@pytest.fixture
def linked(configure, vision, alice) -> None:
    """The rules above. Alice owns the team."""
    services.set_member(actor=SYSTEM, team=vision, username="alice", role=Role.OWNER)
    configure(RULES)


def test_group_is_created_read_changed_and_deleted(idp):
    gina, hal = idp.user("gina")["id"], idp.user("hal")["id"]
    answer = idp.ask(
        "POST",
        "Groups",
        {"schemas": [GROUP], "displayName": "Crew", "externalId": "G1", "members": [{"value": gina}]},
    )
    assert answer.status_code == 201
    made = answer.json()
    assert answer["Location"] == made["meta"]["location"]
    assert [(member["value"], member["type"]) for member in made["members"]] == [(gina, "User")]
    path = f"Groups/{made['id']}"
    assert idp.get(path) == made
    assert idp.get(f"Users/{gina}")["groups"][0]["value"] == made["id"]
    changed = idp.patch(path, {"op": "add", "path": "members", "value": [{"value": hal}]})
    assert {member["value"] for member in changed["members"]} == {gina, hal}
    assert changed["meta"]["version"] != made["meta"]["version"]
    same = idp.patch(path, {"op": "add", "path": "members", "value": [{"value": hal}]})
    assert same["meta"]["version"] == changed["meta"]["version"]
    replaced = idp.put(path, {"schemas": [GROUP], "displayName": "Team", "members": []})
    assert (replaced["displayName"], "members" in replaced) == ("Team", False)
    assert "externalId" not in replaced
    idp.delete(path)
    idp.get(path, 404)
    idp.delete(path, 404)
    kinds = [f"scim.group_{step}" for step in ("created", "changed", "changed", "deleted")]
    assert [
        *Event.objects.filter(kind__startswith="scim.").order_by("pk").values_list("kind", flat=True)
    ] == kinds


def test_requests_of_entra_id_and_okta_are_accepted(idp):
    gina, hal = idp.user("gina")["id"], idp.user("hal")["id"]
    path = f"Groups/{idp.group('Crew', gina, hal)['id']}"
    # Entra ID
    idp.patch(path, {"op": "Remove", "path": "members", "value": [{"$ref": None, "value": gina}]})
    idp.patch(path, {"op": "Add", "path": "members", "value": [{"$ref": None, "value": gina}]})
    found = idp.patch(path, {"op": "Replace", "path": "displayName", "value": "Crew 2"})
    assert {member["value"] for member in found["members"]} == {gina, hal}
    # Okta
    found = idp.patch(path, {"op": "remove", "path": f'members[value eq "{gina}"]'})
    assert [member["value"] for member in found["members"]] == [hal]
    found = idp.patch(path, {"op": "replace", "value": {"id": found["id"], "displayName": "Crew 3"}})
    assert (found["displayName"], len(found["members"])) == ("Crew 3", 1)
    found = idp.patch(path, {"op": "replace", "path": "members", "value": [{"value": gina, "display": "g"}]})
    assert [member["value"] for member in found["members"]] == [gina]


def test_group_names_are_unique(idp):
    idp.group("Crew")
    other = idp.group("Other")
    assert idp.post("Groups", {"schemas": [GROUP], "displayName": "CREW"}, 409)["scimType"] == "uniqueness"
    rename = {"op": "replace", "path": "displayName", "value": "crew"}
    assert idp.patch(f"Groups/{other['id']}", rename, status=409)["scimType"] == "uniqueness"


@pytest.mark.parametrize(
    "more",
    [
        {"displayName": ""}, {"displayName": None}, {"members": "x"}, {"members": [{"value": "x"}]},
        {"members": [{"value": "00000000-0000-4000-8000-000000000000"}]}, {"members": ["x"]},
        {"members": [{}]},
        {"members": [{"value": 5}]}, {"members": [{"value": str(number)} for number in range(10_001)]},
    ],
)  # fmt: skip
def test_invalid_group_is_refused(idp, more):
    refused = idp.post("Groups", {"schemas": [GROUP], "displayName": "Crew", **more}, 400)
    assert refused["scimType"] == "invalidValue"
    assert not ScimGroup.objects.exists()


def test_only_scim_users_become_members(idp, bob):
    idp.post("Groups", {"schemas": [GROUP], "displayName": "C", "members": [{"value": str(bob.pk)}]}, 400)


def test_linked_group_adds_and_removes_memberships(idp, linked):
    gina, hal = idp.user("gina")["id"], idp.user("hal")["id"]
    path = f"Groups/{idp.group('Vision', gina)['id']}"
    assert (place("gina"), place("hal")) == ("member", "")
    assert GivenPlace.objects.get().provider == grants.SOURCE
    idp.patch(path, {"op": "replace", "path": "members", "value": [{"value": hal}]})
    assert (place("gina"), place("hal")) == ("", "member")
    idp.delete(path)
    assert place("hal") == ""
    assert place("alice") == "owner"


def test_manually_granted_membership_is_kept(idp, linked, vision):
    gina = idp.user("gina")["id"]
    services.set_member(actor=SYSTEM, team=vision, username="gina", role=Role.VIEWER)
    path = f"Groups/{idp.group('Vision', gina)['id']}"
    assert place("gina") == "member"
    idp.patch(path, {"op": "remove", "path": "members"})
    assert place("gina") == "viewer"
    idp.patch(path, {"op": "add", "path": "members", "value": [{"value": gina}]})
    services.set_member(actor=SYSTEM, team=vision, username="gina", role=Role.OWNER)
    idp.patch(path, {"op": "remove", "path": "members"})
    assert place("gina") == "owner"


def test_group_is_linked_by_pattern_or_external_id(idp, linked):
    gina = idp.user("gina")["id"]
    idp.group("vision-owners", gina)
    assert place("gina") == "owner"
    assert not User.objects.get(pk=gina).is_operator
    idp.group("Cluster people", gina, externalId="E-77")
    assert User.objects.get(pk=gina).is_operator


def test_renamed_group_grants_other_memberships(idp, linked):
    gina = idp.user("gina")["id"]
    path = f"Groups/{idp.group('Crew', gina)['id']}"
    assert place("gina") == ""
    idp.patch(path, {"op": "replace", "path": "displayName", "value": "Vision"})
    assert place("gina") == "member"
    idp.patch(path, {"op": "replace", "value": {"displayName": "Crew"}})
    assert place("gina") == ""


def test_unlinked_group_grants_no_membership_until_a_rule_exists(idp, configure, vision):
    gina = idp.user("gina")["id"]
    for name in ("Vision", "administrator", "administrators", "operator", "vision-1"):
        idp.group(name, gina, externalId=f"E-{name}")
    user = User.objects.get(pk=gina)
    assert (user.roles, place("gina")) == ([], "")
    configure(RULES)
    assert grants.apply_changed_rules() == 1
    assert grants.apply_changed_rules() == 0
    assert place("gina") == "member"
    configure("[scim]\n")
    grants.apply_changed_rules()
    assert place("gina") == ""


def test_rules_of_the_sign_in_provider_apply(idp, configure, vision, alice):
    configure(
        PROVIDER + '[[provider.rules]]\ngroup = "V"\nteam = "vision"\n[[provider.rules]]\nclaim = "admin"\n'
        'equals = true\nsite_role = "administrator"\n[scim]\nprovider = "corp"\n'
    )
    gina = idp.user("gina")["id"]
    idp.group("V", gina)
    assert place("gina") == "member"
    assert User.objects.get(pk=gina).roles == []


def test_user_attributes_grant_no_roles_or_groups(idp, linked):
    made = idp.user("gina", roles=[{"value": "administrator"}], groups=[{"value": "x"}], is_superuser=True)
    idp.put(f"Users/{made['id']}", {"schemas": [USER], "userName": "gina", "is_superuser": True,
                                    "entitlements": ["administrator"]})  # fmt: skip
    idp.patch(f"Users/{made['id']}", {"op": "add", "value": {"is_superuser": True, "user": {"roles": ["x"]}}})
    user = User.objects.get(pk=made["id"])
    assert (user.roles, user.teams.count()) == ([], 0)


def test_deactivated_member_loses_memberships_and_regains_them(idp, linked, ada):
    gina = idp.user("gina")["id"]
    idp.group("Vision", gina)
    idp.group("Ops", gina, externalId="E-77")
    idp.patch(f"Users/{gina}", {"op": "replace", "path": "active", "value": False})
    user = User.objects.get(pk=gina)
    assert (place("gina"), user.roles) == ("", [])
    deactivation.reactivate(actor=ada, user=user)
    user.refresh_from_db()
    assert (place("gina"), user.roles) == ("member", ["operator"])
    idp.delete(f"Users/{gina}")
    assert place("gina") == ""
    assert not ScimGroup.objects.filter(members=gina).exists()
    idp.user("gina")
    assert place("gina") == ""


def test_last_administrator_keeps_a_role_granted_by_a_group(idp, configure, ada):
    configure('[scim]\n[[scim.rules]]\ngroup = "Admins"\nsite_role = "administrator"\n')
    gina = idp.user("gina")["id"]
    path = f"Groups/{idp.group('Admins', gina)['id']}"
    user = User.objects.get(pk=gina)
    assert user.administers
    user.set_password("a long password of hers")
    user.save()
    ada.set_unusable_password()
    ada.save()
    idp.patch(path, {"op": "remove", "path": "members"})
    user.refresh_from_db()
    assert user.administers
    assert Event.objects.filter(kind="user.rules_not_met").exists()


def test_deleted_account_leaves_its_groups(idp, ada):
    gina = idp.user("gina")["id"]
    path = f"Groups/{idp.group('Crew', gina)['id']}"
    users.delete(actor=ada, user=User.objects.get(pk=gina))
    assert "members" not in idp.get(path)
    idp.patch(path, {"op": "replace", "path": "displayName", "value": "New"})
    assert ScimGroup.objects.get().members.count() == 0
