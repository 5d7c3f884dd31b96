"""The filter language: precedence as in RFC 7644, limits, and invalid filters."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from portal.people.scim import filters
from portal.people.scim.errors import ScimRefusal
from portal.people.scim.filters import And, Comparison, Not, Or, ValuePath, parse

A = Comparison("a", "eq", "1")
B = Comparison("b", "eq", True)
C = Comparison("c", "pr", None)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ('a eq "1"', A),
        ('A EQ "1"', A),
        ("c pr", C),
        ('a eq "1" and b eq true or c pr', Or(And(A, B), C)),
        ('a eq "1" or b eq true and c pr', Or(A, And(B, C))),
        ('(a eq "1" or b eq true) and c pr', And(Or(A, B), C)),
        ('not (a eq "1") and c pr', And(Not(A), C)),
        ('emails[type eq "work" and value co "@x"]',
         ValuePath("emails", And(Comparison("type", "eq", "work"), Comparison("value", "co", "@x")))),
        ('urn:ietf:params:scim:schemas:core:2.0:User:userName sw "J"', Comparison("username", "sw", "J")),
        (r'a eq "say \"hi\" \u00e4"', Comparison("a", "eq", 'say "hi" ä')),
        ("a eq null", Comparison("a", "eq", None)),
        ("a gt -1.5", Comparison("a", "gt", -1.5)),
    ],
)  # fmt: skip
def test_filter_is_parsed_as_in_the_rfc(text, tree):
    assert parse(text) == tree


@pytest.mark.parametrize(
    "text",
    ["", " ", "a", "a eq", 'a is "1"', 'a eq "1', 'a eq "1" and', '"a" eq "1"', 'a eq "1")', '(a eq "1"',
     "a eq bob", 'a[b eq "1"', 'a eq "1" b eq "2"', 'a eq "\\x"', "not a pr", "1a pr", "a.b.c pr", "a;b pr",
     'a[b[c eq "1"]', "a eq 1e999"],
)  # fmt: skip
def test_invalid_filter_is_refused(text):
    with pytest.raises(ScimRefusal) as refused:
        parse(text)
    assert (refused.value.status, refused.value.scim_type) == (400, "invalidFilter")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 500 + "a pr" + ")" * 500,
        "not (" * 300 + "a pr" + ")" * 300,
        " and ".join(["a pr"] * 200),
        'a eq "' + "x" * 5000 + '"',
        "a[" * 400 + "b pr" + "]" * 400,
    ],
)
def test_expensive_filter_is_refused(text):
    with pytest.raises(ScimRefusal):
        parse(text)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('type eq "Work"', True),
        ('type ne "work"', False),
        ("primary eq true", True),
        ('primary eq "True"', True),
        ('value ew "example.org" and type sw "w"', True),
        ('not (value co "nothing")', True),
        ("display pr", False),
        ('display eq "x" or value pr', True),
        ('value gt "a" and value lt "b"', True),
    ],
)
def test_filter_matches_values(text, holds):
    value = {"value": "ada@example.org", "type": "work", "primary": True}
    assert filters.matches(parse(text), value) is holds


@pytest.fixture
def people(db, idp):
    idp.user("gina", externalId="E1", displayName="Gina G", active=True,
             name={"givenName": "Gina", "familyName": "Gray"},
             emails=[{"value": "gina@example.org", "type": "work", "primary": True}])  # fmt: skip
    idp.user("hal", externalId="e1", active=False, emails=[{"value": "hal@example.com"}])
    idp.user("ivy", displayName="100%_'; DROP TABLE accounts_user; --")
    return idp


FILTERS = [
    ('userName eq "gina"', ["gina"]),
    ('userName eq "GINA"', ["gina"]),
    ('userName ne "gina"', ["hal", "ivy"]),
    ('externalId eq "E1"', ["gina"]),
    ('externalId eq "e1"', ["hal"]),
    ('not (externalId pr)', ["ivy"]),
    ('emails.value eq "Gina@example.org"', ["gina"]),
    ('emails[type eq "work" and value ew "example.com"]', ["hal"]),
    ('emails[type eq "home"]', []),
    ('emails co "example"', ["gina", "hal"]),
    ("emails[primary eq true]", ["gina", "hal"]),
    ("active eq false", ["hal"]),
    ('active eq "True"', ["gina", "ivy"]),
    ('name.givenName sw "g" or userName eq "ivy"', ["gina", "ivy"]),
    ('name.familyName eq "Gray" and active eq true', ["gina"]),
    ('displayName co "%_"', ["ivy"]),
    ('displayName co "\' OR 1=1"', []),
    ('userName eq "x\\" or \\"1\\"=\\"1"', []),
    ('userName co "\\u0000"', ["gina", "hal", "ivy"]),
    ('meta.lastModified gt "2020-01-01T00:00:00Z"', ["gina", "hal", "ivy"]),
    ('meta.created lt "2020-01-01T00:00:00Z"', []),
    ('id eq "nonsense"', []),
    ("id pr", ["gina", "hal", "ivy"]),
    ("groups pr", []),
]  # fmt: skip


def test_users_are_filtered(people, subtests):
    for text, names in FILTERS:
        with subtests.test(text):
            found = people.get(f"Users?filter={quote(text)}")
            assert [each["userName"] for each in found["Resources"]] == names
            assert found["totalResults"] == len(names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('emails[type eq "Home"]', ["gina"]),
        ('emails.type ne "home"', ["hal"]),
        ('emails.type gt "house"', ["hal"]),
        ("emails.primary eq false", ["gina"]),
        ("emails[primary eq true]", ["hal"]),
        ("emails.type pr", ["gina", "hal"]),
    ],
)
def test_addresses_are_filtered_by_type_and_primary(people, text, names):
    gina = people.get('Users?filter=userName eq "gina"'.replace(" ", "%20"))["Resources"][0]
    home = [{"value": "gina@example.org", "type": "home", "primary": False}]
    people.patch(f"Users/{gina['id']}", {"op": "replace", "path": "emails", "value": home})
    found = people.get(f"Users?filter={quote(text)}")
    assert [each["userName"] for each in found["Resources"]] == names


INVALID = ['password eq "x"', 'user__is_superuser eq "1"', "user.password pr", 'active gt true',
 'active eq "perhaps"',
 'meta.created gt "then"', 'meta.created gt "0001-01-01T00:00:00+14:00"', 'id co "a"', "userName gt 5",
 'groups co "x"', 'emails[value[type eq "work"]]', 'emails.primary gt true', 'userName eq']  # fmt: skip


def test_unsupported_filter_is_an_invalid_filter(people, subtests):
    for text in INVALID:
        with subtests.test(text):
            found = people.get(f"Users?filter={quote(text)}", 400)
            assert found["scimType"] == "invalidFilter"


def test_groups_are_filtered(people):
    named = quote('userName eq "gina"')
    gina = people.get(f"Users?filter={named}")["Resources"][0]["id"]
    group = people.group("Vision", gina, externalId="G-1")
    people.group("Robots")
    for text, names in (
        ('displayName eq "vision"', ["Vision"]),
        ('externalId eq "G-1"', ["Vision"]),
        (f'members.value eq "{gina}"', ["Vision"]),
        (f'id eq "{group["id"]}" and members eq "{gina}"', ["Vision"]),
        (f'not (members[value eq "{gina}"])', ["Robots"]),
    ):
        found = people.get(f"Groups?excludedAttributes=members&filter={quote(text)}")
        assert [each["displayName"] for each in found["Resources"]] == names
        assert all("members" not in each for each in found["Resources"])
    assert people.get(f"Users?filter={quote('groups pr')}")["totalResults"] == 1
    assert people.get(f"Groups?filter={quote('userName pr')}", 400)["scimType"] == "invalidFilter"
