"""Password rules: any composition, compared exactly, without names of the site."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.test import Client

from portal.people.accounts import users
from portal.people.accounts.context_words import context_words

pytestmark = pytest.mark.django_db


def path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


@pytest.mark.parametrize(
    "password",
    [
        "only lower case letters",
        "8472 9981 0042 7736",
        "  spaces at both ends  ",
        "Ünïcödé — ☃ ☃ ☃ ☃",
        "sixty-four and more: " + "Xy7 " * 30 + "end",
    ],
)
def test_any_composition_is_accepted_and_compared_exactly(ada, password):
    link = users.invite(actor=ada, username="gina")
    assert Client().post(path_of(link.url), {"password": password, "repeated": password}).status_code == 302

    def signs_in(text: str) -> bool:
        return Client().post("/sign-in/", {"username": "gina", "password": text}).status_code == 302

    assert signs_in(password)
    for other in {password.strip(), password.swapcase(), password[:64], password[:-1], password + " "} - {
        password
    }:
        assert not signs_in(other), other


@pytest.mark.parametrize(
    "password",
    [
        "berth-2026",
        "Berth123!!!",
        "JupyterLab2026",
        "admin-admin-1",
        "gpu-oxford-1",
        "oxford.quantum",
    ],
)
def test_site_names_are_refused_as_passwords(settings, password):
    settings.BERTH_PUBLIC_URL = "https://gpu.oxford.quantum.example"
    with pytest.raises(ValidationError) as refused:
        validate_password(password)
    assert "password_context_word" in {problem.code for problem in refused.value.error_list}


@pytest.mark.parametrize(
    "password", ["correct horse berth staple", "nothing of the kind", "workspace of seven cats"]
)
def test_sentence_with_a_site_name_is_accepted(password):
    validate_password(password)


def test_short_parts_of_host_names_are_not_context_words(settings):
    settings.BERTH_PUBLIC_URL, settings.BERTH_DOMAIN, settings.BERTH_NODE_NAME = (
        "https://a.bc.org",
        "a.bc.org",
        "n1",
    )
    assert not context_words() & {"a", "bc", "org", "n1"}


def test_password_fields_are_masked_and_fillable(ada, as_user):
    pages = {
        "/sign-in/": Client(),
        path_of(users.invite(actor=ada, username="gina").url): Client(),
        "/account/": as_user(ada),
    }
    for path, client in pages.items():
        text = client.get(path).content.decode()
        fields = [
            field
            for field in re.findall(r"<input[^>]*>", text)
            if re.search(r'name="[^"]*(password|repeated)', field)
        ]
        assert fields, path
        for field in fields:
            assert 'type="password"' in field
            assert "maxlength" not in field and "onpaste" not in field
            assert re.search(r'autocomplete="(current|new)-password"', field), field


def test_password_hash_matches_the_documented_parameters():
    """In a new process, since tests use a fast hasher."""
    code = (
        "import django; django.setup();"
        "from django.contrib.auth.hashers import get_hasher, make_password;"
        "found = make_password('a long password').split('$');"
        "print(found[0], found[1], len(found[2]) >= 22, get_hasher().algorithm)"
    )
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "portal.settings"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["pbkdf2_sha256", "1000000", "True", "pbkdf2_sha256"]
