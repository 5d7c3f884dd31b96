"""All sessions are created in one place; allauth has no pages of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from allauth.account.adapter import get_adapter
from allauth.account.internal.flows.login import perform_login
from allauth.account.models import Login
from django.test import RequestFactory
from django.urls import NoReverseMatch, reverse

import portal
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.people.accounts.models import UserSession
from tests.factories import PASSWORD

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]


def test_sign_in_is_audited_with_its_method(as_user, alice):
    client = as_user()
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    assert UserSession.objects.get(user=alice).key == client.session.session_key
    assert Event.objects.get(kind=AuditKind.SESSION_SIGNED_IN, actor=alice).data["how"] == "password"


def test_only_one_module_creates_sessions():
    """Only `sessions.py` imports `login` of django.contrib.auth."""
    root = Path(portal.__file__).parent
    importers = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and node.module == "django.contrib.auth"
        and {"login", "alogin"} & {name.name for name in node.names}
    }
    assert importers == {"people/accounts/sessions.py"}


@pytest.mark.parametrize(
    "name",
    [
        "account_signup",
        "account_logout",
        "account_email",
        "account_change_password",
        "account_reset_password",
        "account_reauthenticate",
        "account_inactive",
        "mfa_index",
    ],
)
def test_allauth_pages_have_no_urls(name):
    with pytest.raises(NoReverseMatch):
        reverse(name)


@pytest.mark.parametrize(
    "path", ["/accounts/login/", "/accounts/signup/", "/accounts/email/", "/accounts/2fa/"]
)
def test_default_allauth_paths_are_404(as_user, alice, path):
    assert as_user(alice).get(path).status_code == 404


def test_account_login_resolves_to_the_sign_in_page():
    assert reverse("account_login") == reverse("accounts:sign-in")


def test_sign_up_is_disabled(rf):
    assert get_adapter().is_open_for_signup(rf.get("/")) is False


@pytest.mark.parametrize(
    ("address", "safe"),
    [
        ("/pools/", True),
        ("https://evil.example/", False),
        ("//evil.example", False),
        ("", False),
        (None, False),
    ],
)
def test_only_portal_paths_are_safe_redirects(address, safe):
    assert get_adapter().is_safe_url(address) is safe


def test_deactivated_user_is_refused_with_any_factor(as_user, alice):
    """As a single sign-on provider would pass the user on."""
    alice.is_active = False
    alice.save(update_fields=["is_active"])
    client = as_user()
    request = RequestFactory().get("/")
    request.session = client.session
    request._messages = _Nowhere()
    answered = perform_login(request, Login(user=alice))
    assert answered["Location"] == reverse("accounts:sign-in")
    assert not UserSession.objects.exists()
    assert Event.objects.filter(kind=AuditKind.SESSION_SIGN_IN_FAILED).count() == 1


class _Nowhere:
    def add(self, *_args: object) -> None:
        return None
