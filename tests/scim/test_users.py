"""Users over SCIM: created, found, changed, deactivated, deleted; and protected accounts."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from django.db import IntegrityError
from django.test import Client

from portal.common.actors import SYSTEM
from portal.common.events.models import Event
from portal.people.accounts import deactivation, users
from portal.people.accounts.links import LinkKind
from portal.people.accounts.models import AccountState, User
from portal.people.identity.models import GivenRole, IdentityLink
from portal.people.scim import services
from portal.people.scim.models import ScimUser
from portal.workspaces.lifecycle import State
from tests.factories import PASSWORD, MembershipFactory, UserFactory, WorkspaceFactory, make_token
from tests.fixtures import PROVIDER
from tests.scim.conftest import GROUP, PATCH, USER, Idp

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
NOBODY = "Users/00000000-0000-4000-8000-000000000000"


def test_user_is_created_as_in_the_rfc(idp, ada):
    answer = idp.ask(
        "POST",
        "Users",
        {
            "schemas": [USER],
            "externalId": "bjensen-1",
            "userName": "bjensen",
            "displayName": "Babs",
            "name": {"formatted": "Ms. Barbara J Jensen III", "familyName": "Jensen", "givenName": "Barbara"},
            "emails": [
                {"value": "babs@home.example.org", "type": "home"},
                {"value": "bjensen@example.org", "type": "work", "primary": True},
            ],
            "phoneNumbers": [{"value": "555-555-8377", "type": "work"}],
            "password": "t1meMa$heen",
        },
    )
    assert answer.status_code == 201
    made = answer.json()
    assert answer["Location"] == made["meta"]["location"]
    assert answer["Location"].endswith(f"/scim/v2/Users/{made['id']}")
    assert answer["ETag"] == made["meta"]["version"]
    assert made["emails"] == [{"value": "bjensen@example.org", "type": "work", "primary": True}]
    assert made["name"] == {"givenName": "Barbara", "familyName": "Jensen"}
    assert (made["active"], made["externalId"], "groups" in made) == (True, "bjensen-1", False)
    assert "password" not in made
    assert idp.get(f"Users/{made['id']}") == made
    user = User.objects.get(username="bjensen")
    assert not user.has_usable_password()
    assert user.state == AccountState.INVITED
    assert user.email_confirmed
    asked = {"username": "bjensen", "password": "t1meMa$heen"}
    assert Client().post("/sign-in/", asked).status_code == 200
    entry = Event.objects.get(kind="user.invited")
    assert entry.actor_label == "SCIM for ada"
    assert idp.secret.startswith(entry.token)


def test_created_user_can_join_by_invitation(idp, ada):
    idp.user("gina")
    link = users.invite_again(actor=ada, user=User.objects.get(username="gina"))
    secret = link.url.rstrip("/").rpartition("/")[2]
    users.join(user=link.user, kind=LinkKind.INVITATION, link=secret, password=PASSWORD)
    assert User.objects.get(username="gina").state == AccountState.ACTIVE


def test_created_user_signs_in_with_the_configured_provider(idp, configure):
    configure(PROVIDER + '[scim]\nprovider = "corp"\n')
    made = idp.user("gina")
    link = IdentityLink.objects.get()
    assert (str(link.user_id), link.provider, link.expected) == (made["id"], "corp", "gina")


@pytest.mark.parametrize(
    "name",
    [
        "@example.org",
        "gina@",
        "--@example.org",
        "a" * 255,
        "a@b@example.org",
        "\u212aelvin@example.org",
        "",
        None,
        5,
        "../etc",
        "gi na",
        "-g",
        "\u212aelvin",
        ["gina"],
        "\ud800",
    ],
)
def test_invalid_user_name_is_refused(idp, name):
    refused = idp.post("Users", {"schemas": [USER], "userName": name}, 400)
    assert refused["scimType"] == "invalidValue"
    assert not ScimUser.objects.exists()


@pytest.mark.parametrize(
    ("user_name", "account"),
    [
        ("Gina@Example.org", "gina"),
        ("gina.o'neil+lab@example.org", "gina.o-neil-lab"),
        ("_gina_@example.org", "gina"),
        ("6f3b1c52-0b7e-4d5c-9d0e-4c1f5a3b2d1e", "6f3b1c52-0b7e-4d5c-9d0e-4c1f5a3b"),
        ("a" * 60 + "@example.org", "a" * 32),
    ],
)
def test_account_name_is_derived_from_the_address(idp, user_name, account):
    made = idp.user(user_name)
    assert made["userName"] == user_name.lower()
    assert User.objects.get(pk=made["id"]).username == account
    named = quote(f'userName eq "{user_name}"')
    assert idp.get(f"Users?filter={named}")["Resources"][0]["id"] == made["id"]
    same = {"schemas": [USER], "userName": user_name.upper(), "displayName": "G"}
    assert idp.put(f"Users/{made['id']}", same)["displayName"] == "G"
    assert idp.post("Users", {"schemas": [USER], "userName": user_name}, 409)["scimType"] == "uniqueness"
    idp.delete(f"Users/{made['id']}")
    assert idp.user(user_name)["id"] == made["id"]


def test_equal_local_parts_get_different_account_names(idp, bob, configure):
    configure(PROVIDER + "[scim]\nadopt = true\n")
    made = [idp.user(f"bob@{domain}")["id"] for domain in ("a.example.org", "b.example.org")]
    assert [User.objects.get(pk=key).username for key in made] == ["bob-2", "bob-3"]
    idp.delete(f"Users/{made[0]}")
    assert idp.post("Users", {"schemas": [USER], "userName": "bob-2"}, 409)["scimType"] == "uniqueness"
    assert idp.user("bob")["id"] == str(bob.pk)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("", "gina@example.org"), (r"username_pattern = '([^@]+)@example\.org'", "gina")],
)
def test_address_is_linked_to_the_name_at_sign_in(idp, configure, pattern, expected):
    configure(PROVIDER + f'{pattern}\n[scim]\nprovider = "corp"\n')
    idp.user("Gina@example.org")
    assert IdentityLink.objects.get().expected == expected


@pytest.mark.parametrize(
    "more",
    [
        {"emails": "g@example.org"}, {"emails": [{"value": "no address"}]}, {"emails": ["x"]},
        {"active": "perhaps"}, {"active": 1}, {"name": "Gina"}, {"name": {"givenName": ["G"]}},
        {"externalId": "x" * 256}, {"displayName": {}},
    ],
)  # fmt: skip
def test_value_of_a_wrong_type_is_refused(idp, more):
    refused = idp.post("Users", {"schemas": [USER], "userName": "gina", **more}, 400)
    assert refused["scimType"] == "invalidValue"
    assert not User.objects.filter(username="gina").exists()


def test_users_are_not_created_twice(idp):
    idp.user("gina", emails=[{"value": "gina@example.org"}])
    for body in (
        {"userName": "GINA"},
        {"userName": "other", "emails": [{"value": "Gina@Example.org"}]},
    ):
        assert idp.post("Users", {"schemas": [USER], **body}, 409)["scimType"] == "uniqueness"


def test_accounts_not_created_by_scim_are_not_found(idp, bob):
    assert idp.post("Users", {"schemas": [USER], "userName": "bob"}, 409)["scimType"] == "uniqueness"
    assert idp.get("Users")["totalResults"] == 0
    for method in ("GET", "DELETE"):
        assert idp.ask(method, f"Users/{bob.pk}").status_code == 404
    idp.patch(f"Users/{bob.pk}", {"op": "replace", "path": "active", "value": False}, status=404)
    idp.put(f"Users/{bob.pk}", {"schemas": [USER], "userName": "bob", "active": False}, 404)
    bob.refresh_from_db()
    assert bob.is_active


def test_existing_account_is_adopted_if_enabled(idp, bob, configure):
    configure(PROVIDER + '[scim]\nadopt = true\nprovider = "corp"\n')
    made = idp.user("bob", externalId="B", name={"givenName": "Bob"})
    assert made["id"] == str(bob.pk)
    assert Event.objects.filter(kind="user.adopted").exists()
    assert IdentityLink.objects.get().user_id == bob.pk
    idp.patch(f"Users/{bob.pk}", {"op": "Replace", "path": "active", "value": "False"})
    bob.refresh_from_db()
    assert (bob.is_active, bob.first_name) == (False, "Bob")


def test_account_with_a_role_is_not_adopted(idp, ada, olga, configure):
    configure(PROVIDER + '[scim]\nadopt = true\nprovider = "corp"\n')
    for name in ("ada", "olga"):
        assert idp.post("Users", {"schemas": [USER], "userName": name}, 409)["scimType"] == "uniqueness"
    assert not IdentityLink.objects.exists()


def test_deleted_username_is_not_reused_by_scim(idp, ada, configure):
    configure("[scim]\nadopt = true\n")
    gina = idp.user("gina")
    other = idp.user("hal")
    users.delete(actor=ada, user=User.objects.get(username="gina"))
    idp.get(f"Users/{gina['id']}", 404)
    assert idp.post("Users", {"schemas": [USER], "userName": "gina"}, 409)["scimType"] == "uniqueness"
    refused = idp.patch(
        f"Users/{other['id']}", {"op": "replace", "path": "userName", "value": "gina"}, status=400
    )
    assert refused["scimType"] == "mutability"
    assert User.objects.get(pk=other["id"]).username == "hal"


def test_a_user_is_replaced(idp):
    made = idp.user("gina", displayName="G", externalId="1", emails=[{"value": "g@example.org"}])
    changed = idp.put(
        f"Users/{made['id']}",
        {
            "schemas": [USER, "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"],
            "id": made["id"],
            "userName": "Gina",
            "name": {"givenName": "Gina", "familyName": "Gray"},
            "emails": [{"value": "gina@example.org", "primary": True}],
            "active": True,
            "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User": {"department": "R"},
        },
    )
    assert changed["emails"] == [{"value": "gina@example.org", "type": "work", "primary": True}]
    assert changed["name"] == {"givenName": "Gina", "familyName": "Gray"}
    assert "displayName" not in changed
    assert "externalId" not in changed
    assert changed["meta"]["version"] != made["meta"]["version"]
    assert Event.objects.filter(kind="user.changed").exists()
    assert (
        idp.put(f"Users/{made['id']}", {"schemas": [USER], "userName": "x"}, 400)["scimType"] == "mutability"
    )


def test_refused_operation_rolls_back_earlier_ones(idp):
    made = idp.user("gina")
    idp.patch(
        f"Users/{made['id']}",
        {"op": "replace", "path": "displayName", "value": "changed"},
        {"op": "replace", "path": "active", "value": "perhaps"},
        status=400,
    )
    assert idp.get(f"Users/{made['id']}") == made


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "Replace", "path": "active", "value": "False"},  # Entra ID
        {"op": "replace", "value": {"active": False}},  # Okta
        {"op": "replace", "path": "active", "value": False},
    ],
)
def test_deactivation_ends_access_at_once(idp, operation, django_capture_on_commit_callbacks):
    made = idp.user("gina")
    user = User.objects.get(username="gina")
    browser = Client()
    browser.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    _, secret = make_token(user)
    assert browser.get("/account/").status_code == 200
    changed = idp.patch(f"Users/{made['id']}", operation)
    assert changed["active"] is False
    assert browser.get("/account/").status_code == 302
    headers = {"Authorization": f"Bearer {secret}"}
    assert Client().get("/api/v1/me", headers=headers).status_code == 401
    assert Event.objects.filter(kind="user.deactivated", actor_label="SCIM for ada").exists()
    back = idp.patch(f"Users/{made['id']}", {"op": "Replace", "path": "active", "value": "True"})
    assert back["active"] is True
    assert Client().get("/api/v1/me", headers=headers).status_code == 401


def test_scim_does_not_reactivate_an_account_deactivated_by_an_administrator(idp, ada):
    made = idp.user("gina")
    deactivation.deactivate(actor=ada, user=User.objects.get(username="gina"))
    idp.patch(f"Users/{made['id']}", {"op": "replace", "path": "active", "value": True}, status=409)
    idp.patch(f"Users/{made['id']}", {"op": "replace", "path": "active", "value": False})
    idp.patch(f"Users/{made['id']}", {"op": "replace", "path": "active", "value": True}, status=409)
    assert not User.objects.get(username="gina").is_active
    deactivation.reactivate(actor=ada, user=User.objects.get(username="gina"))
    assert idp.get(f"Users/{made['id']}")["active"] is True


def test_last_administrator_able_to_sign_in_is_kept(idp, ada):
    made = idp.user("gina")
    gina = User.objects.get(username="gina")
    gina.set_password("a long password of hers")
    gina.save()
    users.change(actor=ada, user=gina, roles=["administrator"])
    ada.set_unusable_password()
    ada.save()
    refused = idp.patch(
        f"Users/{made['id']}", {"op": "replace", "path": "active", "value": False}, status=409
    )
    assert "scimType" not in refused
    idp.delete(f"Users/{made['id']}", 409)
    gina.refresh_from_db()
    assert gina.is_active
    assert idp.get(f"Users/{made['id']}")["active"] is True


def test_address_of_a_user_with_a_manual_role_is_kept(idp, ada):
    """Otherwise the provider could get a password link of an administrator."""
    made = idp.user("gina", emails=[{"value": "gina@example.org"}])
    gina = User.objects.get(username="gina")
    users.change(actor=ada, user=gina, roles=["operator"])
    mail = {"op": "replace", "path": "emails", "value": [{"value": "evil@example.org"}]}
    idp.patch(f"Users/{made['id']}", mail, status=409)
    gina.refresh_from_db()
    assert gina.email == "gina@example.org"
    GivenRole.objects.create(user=gina, provider="SCIM", role="operator")
    assert idp.patch(f"Users/{made['id']}", mail)["emails"][0]["value"] == "evil@example.org"


def test_deleted_user_is_deactivated_and_not_found(idp):
    made = idp.user("gina")
    idp.delete(f"Users/{made['id']}")
    user = User.objects.get(username="gina")
    assert (user.is_active, user.deleted_at) == (False, None)
    idp.get(f"Users/{made['id']}", 404)
    idp.delete(f"Users/{made['id']}", 404)
    named = quote('userName eq "gina"')
    assert idp.get(f"Users?filter={named}")["totalResults"] == 0
    again = idp.user("gina", externalId="2")
    assert (again["id"], again["active"]) == (made["id"], True)


def test_deleted_user_is_removed_if_enabled(idp, configure, catalog, team):
    configure("[scim]\ndelete_accounts = true\n")
    gina, hal = idp.user("gina"), idp.user("hal")
    idp.delete(f"Users/{gina['id']}")
    assert User.objects.get(username="gina").state == AccountState.DELETED
    owner = User.objects.get(username="hal")
    MembershipFactory(team=team, user=owner)
    WorkspaceFactory(team=team, owner=owner, state=State.STOPPED)
    idp.delete(f"Users/{hal['id']}", 409)
    owner.refresh_from_db()
    assert owner.is_active
    assert idp.get(f"Users/{hal['id']}")["userName"] == "hal"


def test_lists_are_paged(idp):
    for number in range(5):
        idp.user(f"user{number}")
    first = idp.get("Users?startIndex=1&count=2")
    assert first["schemas"] == ["urn:ietf:params:scim:api:messages:2.0:ListResponse"]
    assert (first["totalResults"], first["itemsPerPage"], first["startIndex"]) == (5, 2, 1)
    assert [each["userName"] for each in first["Resources"]] == ["user0", "user1"]
    assert [each["userName"] for each in idp.get("Users?startIndex=5&count=2")["Resources"]] == ["user4"]
    assert idp.get("Users?startIndex=99")["Resources"] == []
    assert idp.get("Users?startIndex=-3&count=-1") | {"schemas": []} == {
        "schemas": [], "totalResults": 5, "startIndex": 1, "itemsPerPage": 0, "Resources": [],
    }  # fmt: skip
    huge = idp.get(f"Users?count={'9' * 90}")
    assert huge["itemsPerPage"] == 5
    assert idp.get(f"Users?startIndex={'9' * 5000}")["Resources"] == []
    assert idp.get("Users?count=many", 400)["scimType"] == "invalidValue"


def test_page_has_up_to_200_users_and_a_fixed_number_of_queries(idp, django_assert_max_num_queries):
    rows = UserFactory.create_batch(210)
    ScimUser.objects.bulk_create(ScimUser(user=user, user_name=user.username) for user in rows)
    with django_assert_max_num_queries(12):
        found = idp.get("Users?count=100000")
    assert (found["totalResults"], found["itemsPerPage"]) == (210, 200)


def test_only_requested_attributes_are_returned(idp):
    made = idp.user("gina", name={"givenName": "G", "familyName": "H"}, emails=[{"value": "g@example.org"}])
    path = f"Users/{made['id']}"
    assert set(idp.get(f"{path}?attributes=userName,name.givenName")) == {"schemas", "id", "userName", "name"}
    assert idp.get(f"{path}?attributes=NAME.givenname")["name"] == {"givenName": "G"}
    assert idp.get(f"{path}?attributes={USER}:active")["active"] is True
    left = idp.get(f"{path}?excludedAttributes=emails.type,meta,id")
    assert "meta" not in left
    assert left["id"] == made["id"]
    assert left["emails"] == [{"value": "g@example.org", "primary": True}]


def test_change_requires_the_current_version(idp):
    made = idp.user("gina")
    path, version = f"Users/{made['id']}", made["meta"]["version"]
    rename = {"op": "replace", "path": "displayName", "value": "G"}
    assert idp.ask("GET", path, HTTP_IF_NONE_MATCH=version).status_code == 304
    changed = idp.patch(path, rename, HTTP_IF_MATCH=version)
    assert changed["meta"]["version"] != version
    idp.patch(path, {**rename, "value": "H"}, status=412, HTTP_IF_MATCH=version)
    idp.put(path, {"schemas": [USER], "userName": "gina"}, 412, HTTP_IF_MATCH=version)
    assert idp.ask("DELETE", path, HTTP_IF_MATCH=version).status_code == 412
    assert idp.get(path)["displayName"] == "G"
    idp.patch(path, {**rename, "value": "H"}, HTTP_IF_MATCH="*")


def test_unknown_resource_is_a_404_in_scim_format(idp):
    for path in (NOBODY, "Users/nonsense", "Groups/nonsense", "Nothing", "Schemas/urn:x", "ResourceTypes/X"):
        idp.get(path, 404)
    idp.delete(NOBODY, 404)
    idp.patch(NOBODY, {"op": "replace", "path": "active", "value": False}, status=404)


@pytest.mark.parametrize(
    "body",
    [
        "{", "[]", "", b"\xff\xfe", "[" * 100_000, '{"a":' * 20_000,
        {"userName": "gina"}, {"schemas": "x", "userName": "gina"},
        {"schemas": [GROUP], "userName": "gina"}, {"schemas": [PATCH], "userName": "gina"},
    ],
)  # fmt: skip
def test_invalid_user_body_is_refused(idp, body):
    answer = idp.ask("POST", "Users", body)
    assert answer.status_code == 400
    assert answer.json()["scimType"] == "invalidSyntax"


def test_body_of_another_media_type_or_size_is_refused(idp):
    body = {"schemas": [USER], "userName": "gina"}
    assert idp.ask("POST", "Users", body, content_type="application/xml").status_code == 415
    assert idp.ask("POST", "Users", "x" * (2 * 1024 * 1024 + 1)).status_code == 413
    assert idp.ask("POST", "Users", body, content_type="application/json").status_code == 201
    assert idp.ask("PATCH", "Users", {"schemas": [PATCH]}).status_code == 405


def test_concurrent_creation_of_a_user_conflicts(idp, monkeypatch):
    """The second request checked before the first was committed."""

    def meanwhile(**_: object) -> User:
        UserFactory(username="gina")
        return User.objects.create(username="gina")

    monkeypatch.setattr(services.users, "create", meanwhile)
    assert idp.post("Users", {"schemas": [USER], "userName": "gina"}, 409)["scimType"] == "uniqueness"


def test_other_integrity_errors_are_not_reported_as_name_conflicts(idp, monkeypatch):
    def broken(**_: object) -> User:
        return User.objects.create(username="gina", is_auditor=True, is_operator=True)

    monkeypatch.setattr(services.users, "create", broken)
    with pytest.raises(IntegrityError, match="user_auditor_holds_no_other_role"):
        idp.post("Users", {"schemas": [USER], "userName": "gina"}, 409)


def test_token_of_a_deactivated_administrator_ends(ada):
    other = UserFactory(username="otto", is_superuser=True)
    idp = Idp(make_token(other, "scim")[1])
    idp.get("Users")
    deactivation.deactivate(actor=SYSTEM, user=other)
    idp.get("Users", 401)
