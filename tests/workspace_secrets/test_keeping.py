"""Secrets: permissions, valid values, and write-only storage."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from portal.catalog.models import Template
from portal.common.actors import SYSTEM
from portal.common.encrypted_fields import Unreadable, decrypt
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event
from portal.people.accounts import users
from portal.workspaces.secrets import effective, names, services
from portal.workspaces.secrets.codes import SecretCode
from portal.workspaces.secrets.models import Secret, purpose_of
from tests.api.conftest import api as api  # a fixture
from tests.api.conftest import problem

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
VALUE = "planted-value-0f8a7c\nwith a second line"


def put(actor: Any, holder: Any, name: str = "API_KEY", **more: Any) -> Secret:
    return services.put_secret(actor=actor, holder=holder, name=name, **{"value": VALUE, **more}).secret


@pytest.fixture
def template(catalog: None) -> Template:
    return Template.objects.get(slug="jupyterlab")


def test_secret_value_is_encrypted_for_its_row_with_the_current_key(alice, settings):
    one, two = put(alice, alice), put(alice, alice, "OTHER")
    assert VALUE not in one.sealed and decrypt(one.sealed, purpose=purpose_of(one)) == VALUE
    with pytest.raises(Unreadable):
        decrypt(one.sealed, purpose=purpose_of(two))
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another secret key, of some length too"
    assert decrypt(one.sealed, purpose=purpose_of(one)) == VALUE
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(StateConflict) as refused:
        effective.values_of([one], owner=alice, now=one.created_at, fetched={})
    assert refused.value.reason.code is SecretCode.UNREADABLE


def test_changed_value_makes_another_version_and_keeps_other_fields(alice):
    first = put(alice, alice, kind="file", description="For  W&B", everywhere=True)
    second = put(alice, alice, value="another")
    assert (second.pk, second.version, second.kind, second.everywhere) == (first.pk, 2, "file", True)
    assert (second.description, second.size_bytes) == ("For W&B", 7)
    with pytest.raises(StateConflict):
        put(alice, alice, only_new=True)


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "path", "LD_PRELOAD", "PYTHONPATH", "BERTH_AGENT", "JUPYTER_TOKEN", "HOME", "BASH_ENV", "ENV",
        "http_proxy", "HTTPS_PROXY", "GIT_SSH_COMMAND", "NODE_OPTIONS", "CUDA_VISIBLE_DEVICES",
        "PIP_INDEX_URL", "PERL5OPT", "PROMPT_COMMAND", "TZ", "_", "LC_ALL", "IPYTHONDIR", "XDG_CONFIG_HOME",
    ],
)  # fmt: skip
def test_reserved_secret_names_are_refused(alice, name):
    assert names.is_well_formed(name)
    with pytest.raises(InvalidInput) as refused:
        put(alice, alice, name)
    assert refused.value.extra["errors"]["name"][0].code is SecretCode.NAME_RESERVED


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "../x", "A\n", "É", "A" * 65, "A.B", "A/B", "A=B"])
def test_secret_name_must_be_a_variable_name(alice, name):
    with pytest.raises(InvalidInput) as refused:
        put(alice, alice, name)
    assert refused.value.extra["errors"]["name"][0].code is SecretCode.NAME_INVALID
    assert not Secret.objects.exists()


@pytest.mark.parametrize("value", ["", "a\0b", "\ud800", "é" * 32_769, "x" * 65_537])
def test_secret_value_is_text_of_up_to_64_kib(alice, value):
    with pytest.raises(InvalidInput) as refused:
        put(alice, alice, value=value)
    assert list(refused.value.extra["errors"]) == ["value"]
    assert put(alice, alice, value="é" * 32_768).size_bytes == 65_536


def test_number_of_secrets_is_limited(alice, bob, monkeypatch):
    monkeypatch.setattr(services, "MAX_SECRETS", 2)
    put(alice, alice), put(alice, alice, "B")
    with pytest.raises(StateConflict) as refused:
        put(alice, alice, "C")
    assert refused.value.reason.code is SecretCode.TOO_MANY
    put(alice, alice, "B", value="another value")
    put(bob, bob, "C")


def test_secret_has_exactly_one_holder(alice, team):
    row = put(alice, alice)
    for changes in ({"team": team}, {"user": None}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Secret.objects.filter(pk=row.pk).update(**changes)


def test_permission_to_write_secrets(team, template, alice, bob, charlie, olga, ada):
    put(alice, team), put(olga, team), put(bob, bob), put(olga, template)
    for actor, holder in ((bob, team), (charlie, team), (bob, template), (alice, template)):
        with pytest.raises(NotAllowed):
            put(actor, holder, "B")
    own = Secret.objects.get(user=bob)
    for actor in (alice, olga, ada):
        with pytest.raises(NotFound):
            put(actor, bob)
        with pytest.raises(NotFound):
            services.delete(actor=actor, secret=own)
        with pytest.raises(NotFound):
            services.change(actor=actor, secret=own, everywhere=True)


def test_owners_of_a_team_template_manage_its_secrets(team, template, alice, bob, charlie):
    template.team = team
    template.save()
    put(alice, template)
    for actor in (bob, charlie):
        with pytest.raises(NotAllowed):
            put(actor, template, "B")


def test_secret_value_is_write_only_over_rest(api, alice, bob, team):
    program, path = api(alice), "teams/vision/secrets/API_KEY"
    made = program.put(path, {"value": VALUE, "kind": "file", "description": "For us"})
    assert made.status_code == 201
    row = made.json()
    assert row["size_bytes"] == len(VALUE) and row["changed_by"] == "alice" and row["version"] == 1
    answers = [made, program.get(path), api(bob).get(path), api(bob).get("teams/vision/secrets")]
    answers.append(program.send("PATCH", path, {"everywhere": True}, **{"If-Match": made["ETag"]}))
    assert [answer.status_code for answer in answers[1:]] == [200] * 4
    stale = problem(program.put(path, {"value": "x"}, **{"If-Match": made["ETag"]}), 412, "changed_meanwhile")
    assert stale["changed_by"] == "alice"
    answers.append(program.put(path, {"value": VALUE, "kind": "nonsense"}))
    answers.append(program.put(path, {"value": VALUE, "valeu": VALUE[:10]}))
    answers.append(program.put("teams/vision/secrets/PATH", {"value": VALUE}))
    assert [answer.status_code for answer in answers[5:]] == [400] * 3
    assert program.delete(path).status_code == 204
    for each in answers:
        assert b"planted" not in each.content
    problem(program.get(path), 404, "not_found")


def test_whitespace_of_a_secret_value_is_kept(api, alice):
    text = "  -----BEGIN\n\nKEY-----\n"
    assert api(alice).put("me/secrets/KEY", {"value": text, "kind": "file"}).status_code == 201
    row = Secret.objects.get()
    assert decrypt(row.sealed, purpose=purpose_of(row)) == text


def test_condition_on_a_missing_secret_is_not_found(api, alice):
    problem(api(alice).put("me/secrets/KEY", {"value": "x"}, **{"If-Match": '"abc"'}), 404, "not_found")


def test_audit_log_has_secret_changes_without_values(team, alice):
    row = put(alice, team)
    services.change(actor=alice, secret=row, description="More", everywhere=True)
    services.delete(actor=alice, secret=row)
    entries = list(Event.objects.filter(kind__startswith="secret.").order_by("pk"))
    assert [entry.kind for entry in entries] == ["secret.created", "secret.changed", "secret.deleted"]
    assert entries[1].data["changed"] == ["description", "everywhere"]
    assert all("planted" not in f"{entry.message}{entry.data}" for entry in entries)
    assert {entry.team for entry in entries} == {team}


def test_secrets_are_deleted_with_the_account_or_template(alice, bob, ada, olga, template, team):
    from portal.catalog import entries

    put(bob, bob), put(olga, template), put(alice, team)
    users.delete(actor=SYSTEM, user=bob)
    entries.delete(actor=olga, entry=template)
    assert [row.team for row in Secret.objects.all()] == [team]


def test_deactivated_account_cannot_write_secrets(alice):
    type(alice).objects.filter(pk=alice.pk).update(is_active=False)
    with pytest.raises(NotAllowed):
        put(alice, alice)


def test_browser_session_can_write_secrets(as_user, alice):
    browser = as_user(alice)
    saved = browser.put("/api/v1/me/secrets/API_KEY", {"value": VALUE}, content_type="application/json")
    assert saved.status_code == 201 and Secret.objects.get().user == alice
