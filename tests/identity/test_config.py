"""Configuration of sign-in providers, and its error messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.checks import run_checks

from portal.people.identity import config
from portal.people.identity.config import ConfigError, Oidc

GOOD = """
[[provider]]
kind = "oidc"
id = "corp"
name = "Example Corp"
issuer = "https://id.example.org"
client_id = "berth"
client_secret = "env:CORP_SECRET"
username_pattern = '(.+)@example\\.org'

[[provider.rules]]
group_pattern = "gpu-(?P<team>[a-z]+)"
team = '\\g<team>'

[[provider.rules]]
group = "admins"
site_role = "operator"
"""


def loaded(tmp_path: Path, text: str, **variables: str) -> tuple[config.Provider, ...]:
    path = tmp_path / "providers.toml"
    path.write_text(text)
    return config.load(str(path), variables).providers


def wrong(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    return " ".join(caught.value.problems)


def with_line(line: str, *, to: str = "provider") -> str:
    """The valid file with one more line, in its provider or in another rule."""
    if to == "provider":
        return GOOD.replace('client_id = "berth"\n', f'client_id = "berth"\n{line}\n')
    return f"{GOOD}\n[[provider.{to}]]\n{line}\n"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORP_SECRET", "hush")
    monkeypatch.setenv("CAMPUS_CERTIFICATE", "-----BEGIN CERTIFICATE-----")


def test_configuration_file_is_read(tmp_path):
    (corp,) = loaded(tmp_path, GOOD)
    assert isinstance(corp, Oidc)
    assert (corp.kind, corp.issuer, len(corp.rules)) == ("oidc", "https://id.example.org", 2)
    assert config.read_secret(corp.client_secret) == "hush"
    assert "hush" not in repr(corp)


def test_several_providers_of_several_kinds(tmp_path):
    text = (
        GOOD
        + """
[[provider]]
kind = "saml"
id = "campus"
name = "Campus"
entity_id = "https://idp.example.org"
sso_url = "https://idp.example.org/sso"
certificate = "env:CAMPUS_CERTIFICATE"

[[provider]]
kind = "ldap"
id = "directory"
name = "Directory"
url = "ldaps://ldap.example.org"
user_base = "ou=people,dc=example,dc=org"
"""
    )
    assert [each.kind for each in loaded(tmp_path, text)] == ["oidc", "saml", "ldap"]


def test_setting_one_ldap_claim_keeps_the_other_defaults(tmp_path):
    (directory,) = loaded(
        tmp_path,
        """
[[provider]]
kind = "ldap"
id = "staff"
name = "Staff"
url = "ldaps://ldap.example.org"
user_base = "ou=people"
[provider.claims]
username = "sAMAccountName"
""",
    )
    claims = directory.claims
    assert (claims.username, claims.subject, claims.email) == ("sAMAccountName", "entryUUID", "mail")


def test_provider_from_environment_variables(tmp_path):
    found = config.load(
        "", {"BERTH_OIDC_ISSUER": "https://x.org", "BERTH_OIDC_CLIENT_ID": "b", "BERTH_OIDC_TEAM": "all"}
    ).providers
    assert [(each.id, each.name, each.rules[0].team) for each in found] == [("oidc", "Single sign-on", "all")]
    assert config.load("", {}).providers == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not toml", "is not valid TOML"),
        (with_line('isuer = "x"'), "isuer"),
        (GOOD.replace('client_id = "berth"', ""), "client_id"),
        (GOOD.replace('"oidc"', '"kerberos"'), "kerberos"),
        (GOOD.replace('"env:CORP_SECRET"', '"s3cret"'), "client_secret: write env:NAME or file:PATH"),
        (GOOD.replace("CORP_SECRET", "NO_SUCH_VARIABLE"), "the variable NO_SUCH_VARIABLE is not set"),
        (GOOD.replace('"env:CORP_SECRET"', '"file:/nowhere"'), "/nowhere cannot be read"),
        (GOOD.replace("https://id", "http://id"), "write an https address"),
        (GOOD.replace('id = "corp"', 'id = "Corp/1"'), "lower-case"),
        (GOOD + GOOD, "two providers have this id"),
        (GOOD.replace("(.+)@", "(.+@"), "not a valid regular expression"),
        (GOOD.replace("(.+)@", ".+@"), "put parentheses around"),
        (GOOD.replace("(.+)@", "(([a-z]+.?)+)@"), "could take too long"),
        (with_line('group_pattern = "(a+)+"\nteam = "x"', to="rules"), "could take too long"),
        (with_line('link = ["phone"]'), "link: “phone”"),
        (with_line('scopes = ["email"]'), "“openid” is missing"),
        (with_line('group = "x"', to="rules"), "rules 3: set either team or site_role"),
        (with_line('team = "x"', to="rules"), "rules 3: set exactly one of group"),
        (with_line('group = "x"\nteam = "x"\nrole = "boss"', to="rules"), "role must be one of"),
        (with_line('group = "x"\nsite_role = "root"', to="rules"), "site_role must be one of"),
        (with_line('group_pattern = "x"\nteam = "\\\\1"', to="rules"), "refers to a group that its"),
        (with_line('group = "x"\nteam = "\\\\1"', to="rules"), "refers to a pattern, but no pattern is set"),
        (with_line('claim = "hd"', to="require"), "either equals or pattern"),
        (with_line('group = "x"\nequals = "y"', to="require"), "require a claim"),
    ],
)  # fmt: skip
def test_configuration_error_is_reported_without_secrets(tmp_path, text, said):
    words = wrong(tmp_path, text)
    assert said in words
    assert "s3cret" not in words


def test_all_configuration_errors_are_reported_together(tmp_path):
    text = GOOD.replace("https://id", "http://id").replace("CORP_SECRET", "NO_SUCH")
    assert "write an https address" in wrong(tmp_path, text)
    assert "NO_SUCH is not set" in wrong(tmp_path, text)


def test_unencrypted_ldap_is_refused(tmp_path):
    ldap = """
[[provider]]
kind = "ldap"
id = "directory"
name = "Directory"
url = "ldap://ldap.example.org"
user_base = "dc=example,dc=org"
"""
    assert "unencrypted" in wrong(tmp_path, ldap)
    assert loaded(tmp_path, ldap + "start_tls = true\n")
    assert loaded(tmp_path, ldap.replace("ldap.example.org", "127.0.0.1"))


def test_missing_file_is_a_system_check_error(settings, configure):
    settings.BERTH_SIGN_IN_PROVIDERS = "/nowhere/providers.toml"
    found = [check for check in run_checks() if check.id == "identity.E001"]
    assert "/nowhere/providers.toml cannot be read" in found[0].msg
    configure(GOOD)
    assert [check for check in run_checks() if check.id.startswith("identity")] == []


def test_public_access_is_a_warning(configure):
    configure(GOOD.replace("https://id.example.org", "https://accounts.google.com"))
    assert [check.id for check in run_checks() if check.id.startswith("identity")] == ["identity.W001"]
    configure(
        with_line('claim = "hd"\nequals = "example.org"', to="require").replace(
            "https://id.example.org", "https://accounts.google.com"
        )
    )
    assert [check.id for check in run_checks() if check.id.startswith("identity")] == []
