"""Sign-in with an LDAP directory: OpenLDAP in its own process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from portal.common.events.models import Event
from portal.people.accounts.models import User
from portal.people.identity.models import IdentityLink
from tests.factories import PASSWORD as LOCAL
from tests.identity import slapd
from tests.identity.conftest import free_port, wait_for
from tests.identity.slapd import PASSWORD

ldap = pytest.importorskip("ldap", reason="python-ldap is not installed: make ldap")
pytest.importorskip("django_auth_ldap", reason="django-auth-ldap is not installed: make ldap")
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.engine,
    pytest.mark.skipif(not slapd.PROGRAM, reason="there is no slapd"),
]
RULES = """
[[provider.rules]]
group = "vision"
team = "vision"
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, Path]]:
    folder = tmp_path_factory.mktemp("slapd")
    port, tls_port = free_port(), free_port()
    with slapd.start(folder, port, tls_port) as process:
        try:
            wait_for(lambda: listens(port) and listens(tls_port), process, "slapd")
            yield port, tls_port, folder
        finally:
            process.kill()


def settings_of(url: str, more: str = "", rules: str = RULES) -> str:
    return f"""
[[provider]]
kind = "ldap"
id = "directory"
name = "Example Directory"
url = "{url}"
bind_dn = "{slapd.ADMIN}"
bind_password = "env:DIRECTORY_SECRET"
user_base = "ou=people,dc=example,dc=org"
group_base = "ou=groups,dc=example,dc=org"
timeout_s = 3
{more}
{rules}
"""


@pytest.fixture
def directory(ports, configure, monkeypatch, team) -> Any:
    """Configure the directory; call it with other settings."""
    monkeypatch.setenv("DIRECTORY_SECRET", slapd.ADMIN_PASSWORD)

    def change(more: str = "", url: str = f"ldap://127.0.0.1:{ports[0]}", rules: str = RULES) -> None:
        configure(settings_of(url, more, rules))

    change()
    return change


def sign_in(name: str, password: str = PASSWORD) -> tuple[Client, str]:
    """Sign in with a new browser; return the user and the page."""
    browser = Client()
    answer = browser.post("/sign-in/", {"username": name, "password": password})
    return browser, answer.content.decode()


def who(browser: Client) -> str:
    answer = browser.get("/api/v1/me")
    return str(answer.json()["username"]) if answer.status_code == 200 else ""


def test_first_sign_in_creates_the_account_with_teams(directory):
    assert who(sign_in("nora")[0]) == "nora"
    nora = User.objects.get(username="nora")
    assert (nora.first_name, nora.last_name, nora.email) == ("Nora", "Berg", "nora@example.org")
    assert list(nora.memberships.values_list("team__slug", flat=True)) == ["vision"]
    link = IdentityLink.objects.get(user=nora)
    assert link.provider == "directory"
    assert len(link.subject) == 36  # entryUUID
    assert not nora.has_usable_password()


def test_usernames_ignore_case_and_spaces(directory):
    for name in ("nora", "NORA", " nora "):
        assert who(sign_in(name)[0]) == "nora"
    assert User.objects.filter(username__icontains="nora").count() == 1


@pytest.mark.parametrize("password", ["wrong", "", " ", "\x00", PASSWORD.upper()])
def test_wrong_password_is_refused(directory, password):
    browser, _ = sign_in("nora", password)
    assert who(browser) == ""
    assert not User.objects.filter(username="nora").exists()


@pytest.mark.parametrize(
    "name",
    [
        "*",
        "n*",
        "nora)(uid=*",
        "*)(objectClass=*",
        "nora)(|(uid=*",
        "\\6eora",
        "uid=nora,ou=people,dc=example,dc=org",
    ],
)
def test_username_is_never_interpreted_as_a_filter(directory, name):
    assert who(sign_in(name)[0]) == ""
    assert not User.objects.filter(username="nora").exists()


def test_equal_local_username_is_not_linked(directory, bob):
    browser, page = sign_in("bob")
    assert who(browser) == ""
    assert "belongs to an account that is not linked" in page
    assert who(sign_in("bob", LOCAL)[0]) == "bob"


def test_disabled_entry_cannot_sign_in(directory):
    directory('user_filter = "(&(uid=%(user)s)(!(employeeType=disabled)))"')
    assert who(sign_in("otto")[0]) == ""
    directory('require = [{ claim = "employeeType", equals = "staff" }]')
    browser, page = sign_in("otto")
    assert who(browser) == ""
    assert "employeeType" in page
    assert who(sign_in("nora")[0]) == "nora"


def test_required_group(directory):
    directory('require = [{ group = "vision" }]')
    assert who(sign_in("nora")[0]) == "nora"
    assert who(sign_in("bob")[0]) == ""


@pytest.mark.parametrize("how", ["ldaps", "start_tls"])
def test_private_certificate_authority_is_accepted(directory, ports, how):
    ca = f'ca_file = "{ports[2] / "ca.pem"}"'
    if how == "ldaps":
        directory(ca, url=f"ldaps://127.0.0.1:{ports[1]}")
    else:
        directory(f"{ca}\nstart_tls = true")
    assert who(sign_in("nora")[0]) == "nora"


@pytest.mark.parametrize("how", ["ldaps", "start_tls"])
def test_unknown_certificate_is_refused(directory, ports, how):
    if how == "ldaps":
        directory(url=f"ldaps://127.0.0.1:{ports[1]}")
    else:
        directory("start_tls = true")
    browser, page = sign_in("nora")
    assert who(browser) == ""
    assert "is not responding" in page


def test_unreachable_directory_is_reported_and_local_passwords_work(directory, bob):
    directory(url="ldap://127.0.0.1:1")
    browser, page = sign_in("nora")
    assert "Example Directory is not responding" in page
    assert who(browser) == ""
    assert who(sign_in("bob", LOCAL)[0]) == "bob"


def test_hanging_directory_times_out(directory, bob):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        directory("", url=f"ldap://127.0.0.1:{silent.getsockname()[1]}")
        _, page = sign_in("nora")
    assert "is not responding" in page


def test_service_account_failure_is_not_reported_as_a_wrong_password(directory, monkeypatch):
    monkeypatch.setenv("DIRECTORY_SECRET", "wrong")
    assert "is not responding" in sign_in("nora")[1]


def test_unreadable_groups_remove_no_memberships(directory):
    assert who(sign_in("nora")[0]) == "nora"
    directory('group_filter = "(objectClass=groupOfNames"')
    assert "is not responding" in sign_in("nora")[1]
    assert User.objects.get(username="nora").memberships.count() == 1


def test_password_is_not_in_the_audit_log(directory):
    sign_in("nora")
    sign_in("otto", "typed-wrong-password")
    for entry in Event.objects.all():
        text = f"{entry.message} {entry.data} {entry.why}"
        assert PASSWORD not in text
        assert "typed-wrong-password" not in text
