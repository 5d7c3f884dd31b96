"""`manage.py add_simulated_pool` and `manage.py bootstrap`."""

from __future__ import annotations

import logging
from io import StringIO
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command

from portal.catalog.models import Flavor, Template
from portal.fleet.inventory.models import Device, Pool
from portal.people.accounts.models import Membership, Team, User

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_large_simulated_pool_is_created_in_one_command(tmp_path):
    said = run(
        "add_simulated_pool", "--nodes", "100", "--gpus", "8", "--set", f"state={tmp_path}", "--set", "seed=7"
    )
    pool = Pool.objects.get()
    assert (pool.slug, pool.simulated, pool.state) == ("simulated", True, "online")
    assert pool.config["seed"] == 7
    assert Device.objects.count() == 800
    assert {flavor.simulated for flavor in Flavor.objects.all()} == {True}
    assert "simulated-h100-x8" in said
    assert set(Device.objects.values_list("model", flat=True)) == {"Simulated H100"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "nonsense"], "KEY=VALUE"),
        (["--set", "gpsu=3"], "gpsu"),
        (["--nodes", "0"], "nodes"),
        (["--slug", "No Slug"], "slug"),
    ],
)
def test_invalid_setting_is_reported(arguments, words):
    with pytest.raises(CommandError, match=words):
        run("add_simulated_pool", *arguments)
    assert not Pool.objects.exists()


def test_bootstrap_creates_initial_objects_and_shows_the_password_once(monkeypatch, caplog):
    monkeypatch.delenv("BERTH_ADMIN_PASSWORD", raising=False)
    said = run("bootstrap")
    # It runs before Redis, which is normal.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    admin = User.objects.get()
    assert admin.username == "admin"
    assert admin.is_superuser and admin.operates
    (password,) = (line.split("password: ")[1] for line in said.splitlines() if "password: " in line)
    assert admin.check_password(password)
    assert Membership.objects.get().role == "owner"
    assert {template.slug for template in Template.objects.all()} >= {"jupyterlab", "marimo", "vscode"}
    assert {flavor.slug for flavor in Flavor.objects.all()} == {"cpu-small", "cpu-large"}
    assert Pool.objects.get().driver == "local"

    assert "password" not in run("bootstrap")
    assert (User.objects.count(), Team.objects.count(), Pool.objects.count()) == (1, 1, 1)
    admin.refresh_from_db()
    assert admin.check_password(password)


def test_bootstrap_uses_a_given_password_without_showing_it(monkeypatch):
    monkeypatch.setenv("BERTH_ADMIN_PASSWORD", "correct-horse-battery")
    assert "correct-horse" not in run("bootstrap")
    assert User.objects.get().check_password("correct-horse-battery")


def test_bootstrap_shows_an_invitation_link_until_a_password_is_set(monkeypatch, client):
    monkeypatch.delenv("BERTH_ADMIN_PASSWORD", raising=False)
    first, again = (run("bootstrap", "--link") for _ in range(2))
    old, new = (next(word for word in said.split() if "://" in word) for said in (first, again))
    admin = User.objects.get()
    assert admin.is_superuser and admin.operates and not admin.has_usable_password()
    chosen = {"password": "a passphrase of four words", "repeated": "a passphrase of four words"}
    client.post(urlsplit(old).path, chosen)
    admin.refresh_from_db()
    assert not admin.has_usable_password()
    client.post(urlsplit(new).path, chosen)
    admin.refresh_from_db()
    assert admin.check_password(chosen["password"])
    assert run("bootstrap", "--link") == ""


def test_bootstrap_refuses_a_weak_password_and_creates_nothing(monkeypatch):
    monkeypatch.setenv("BERTH_ADMIN_PASSWORD", "1234")
    with pytest.raises(CommandError, match="too short"):
        run("bootstrap")
    assert not User.objects.exists()


def test_changes_by_operators_are_kept(monkeypatch):
    monkeypatch.setenv("BERTH_ADMIN_PASSWORD", "correct-horse-battery")
    run("bootstrap")
    Template.objects.filter(slug="jupyterlab").update(name="Notebooks", enabled=False)
    run("bootstrap")
    template = Template.objects.get(slug="jupyterlab")
    assert (template.name, template.enabled) == ("Notebooks", False)
