"""PATCH on documents: the three operations, forms of Entra ID and Okta, and refusals."""

from __future__ import annotations

import pytest

from portal.people.scim.errors import ScimRefusal
from portal.people.scim.patch import apply_patch
from portal.people.scim.resources import GROUP_SHAPE, USER, USER_SHAPE

GINA = {
    "userName": "gina",
    "active": True,
    "name": {"givenName": "Gina", "familyName": "Gray"},
    "emails": [{"value": "gina@example.org", "type": "work", "primary": True}],
}
MAIL = 'emails[type eq "work"].value'


@pytest.mark.parametrize(
    ("operation", "attribute", "value"),
    [
        ({"op": "replace", "path": "displayName", "value": "G"}, "displayName", "G"),
        ({"op": "Replace", "path": "active", "value": "False"}, "active", "False"),
        ({"op": "replace", "value": {"active": False}}, "active", False),
        ({"op": "add", "path": f"{USER}:displayName", "value": "G"}, "displayName", "G"),
        ({"op": "replace", "path": "NAME.givenname", "value": "Jo"}, "name",
         {"givenName": "Jo", "familyName": "Gray"}),
        ({"op": "Add", "value": {"name.givenName": "Jo", "title": "Dr"}}, "name",
         {"givenName": "Jo", "familyName": "Gray"}),
        ({"op": "replace", "path": "name", "value": {"familyName": "Old"}}, "name",
         {"givenName": "Gina", "familyName": "Old"}),
        ({"op": "remove", "path": "name.familyName"}, "name", {"givenName": "Gina"}),
        ({"op": "remove", "path": "name"}, "name", {}),
        ({"op": "replace", "path": "name.givenName", "value": None}, "name", {"familyName": "Gray"}),
        ({"op": "Replace", "path": MAIL, "value": "g@x.org"}, "emails",
         [{"value": "g@x.org", "type": "work", "primary": True}]),
        ({"op": "replace", "value": {MAIL: "g@x.org"}}, "emails",
         [{"value": "g@x.org", "type": "work", "primary": True}]),
        ({"op": "replace", "path": "emails", "value": [{"value": "n@x.org"}]}, "emails",
         [{"value": "n@x.org"}]),
        ({"op": "add", "path": "emails", "value": {"value": "n@x.org", "primary": True}}, "emails",
         [{"value": "gina@example.org", "type": "work", "primary": False},
          {"value": "n@x.org", "primary": True}]),
        ({"op": "add", "path": 'emails[type eq "home" and primary eq false].value', "value": "h@x.org"},
         "emails",
         [*GINA["emails"], {"type": "home", "primary": False, "value": "h@x.org"}]),
        ({"op": "remove", "path": "emails"}, "emails", []),
        ({"op": "remove", "path": 'emails[value eq "GINA@example.org"]'}, "emails", []),
    ],
)  # fmt: skip
def test_operation_changes_a_user(operation, attribute, value):
    before = {**GINA}
    assert apply_patch(before, [operation], USER_SHAPE) == {**GINA, attribute: value}
    assert before == GINA


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "title", "value": "Dr"},
        {"op": "Add", "path": 'addresses[type eq "work"].country', "value": "CH"},
        {"op": "Replace", "path": "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department",
         "value": "R"},
        {"op": "replace", "value": {"id": "other", "schemas": [], "meta": {}, "groups": [],
                                    "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User": {"a": 1}}},
        {"op": "remove", "path": 'emails[value eq "nobody@x.org"]'},
        {"op": "remove", "path": "nickName"},
    ],
)  # fmt: skip
def test_unsupported_attributes_are_ignored(operation):
    assert apply_patch(GINA, [operation], USER_SHAPE) == GINA


@pytest.mark.parametrize(
    ("operation", "scim_type"),
    [
        ({"op": "remove"}, "noTarget"),
        ({"op": "replace", "path": 'emails[value co "nobody"].type', "value": "x"}, "noTarget"),
        ({"op": "replace", "path": "id", "value": "x"}, "mutability"),
        ({"op": "add", "path": "groups", "value": [{"value": "x"}]}, "mutability"),
        ({"op": "add", "path": "meta.version", "value": "x"}, "mutability"),
        ({"op": "move", "path": "active", "value": True}, "invalidSyntax"),
        ({"path": "active", "value": True}, "invalidSyntax"),
        ({"op": ["add"], "path": "active"}, "invalidSyntax"),
        ({"op": "replace", "value": "x"}, "invalidSyntax"),
        ({"op": "replace", "path": "name", "value": "x"}, "invalidValue"),
        ({"op": "add", "path": "emails", "value": "x@y.org"}, "invalidValue"),
        ({"op": "replace", "path": "emails[", "value": "x"}, "invalidPath"),
        ({"op": "replace", "path": "emails[nonsense].value", "value": "x"}, "invalidPath"),
        ({"op": "replace", "path": "emails[" + "(" * 400 + "type pr" + ")" * 400 + "].value", "value": "x"},
         "invalidPath"),
        ({"op": "replace", "path": 'active[value eq "x"]', "value": "x"}, "invalidPath"),
        ({"op": "replace", "path": "active.x", "value": "x"}, "invalidPath"),
        ({"op": "replace", "path": "a b", "value": "x"}, "invalidPath"),
        ({"op": "replace", "path": 5, "value": "x"}, "invalidPath"),
        ("replace", "invalidSyntax"),
    ],
)  # fmt: skip
def test_invalid_operation_is_refused_with_the_rfc_type(operation, scim_type):
    with pytest.raises(ScimRefusal) as refused:
        apply_patch(GINA, [operation], USER_SHAPE)
    assert refused.value.scim_type == scim_type


@pytest.mark.parametrize("operations", [None, [], {}, "x", [{"op": "add", "path": "a", "value": 1}] * 1001])
def test_number_of_operations_is_limited(operations):
    with pytest.raises(ScimRefusal):
        apply_patch(GINA, operations, USER_SHAPE)


@pytest.mark.parametrize(
    ("operation", "members"),
    [
        ({"op": "Add", "path": "members", "value": [{"$ref": None, "value": "C"}]}, ["A", "B", "C"]),
        ({"op": "add", "path": "members", "value": [{"value": "a"}]}, ["A", "B"]),
        ({"op": "add", "value": {"members": [{"value": "C", "display": "c"}]}}, ["A", "B", "C"]),
        ({"op": "Remove", "path": 'members[value eq "A"]'}, ["B"]),
        ({"op": "Remove", "path": "members", "value": [{"value": "A"}]}, ["B"]),
        ({"op": "remove", "path": "members"}, []),
        ({"op": "replace", "path": "members", "value": [{"value": "D"}]}, ["D"]),
        ({"op": "replace", "path": "members", "value": []}, []),
        ({"op": "replace", "value": {"displayName": "New", "id": "x"}}, ["A", "B"]),
    ],
)
def test_members_are_added_and_removed(operation, members):
    group = {"displayName": "G", "members": [{"value": "A"}, {"value": "B"}]}
    assert [member["value"] for member in apply_patch(group, [operation], GROUP_SHAPE)["members"]] == members
