"""`manage.py check` reports unsafe settings."""

from __future__ import annotations

import pytest

from portal.common import system_checks


@pytest.mark.parametrize(
    ("url", "https", "warned"),
    [
        ("http://localhost:8000", False, False),
        ("http://berth.localhost:8000", False, False),
        ("http://127.0.0.1:8000", False, False),
        ("https://berth.example.org", True, False),
        ("http://berth.example.org", False, True),
        ("http://notlocalhost", False, True),
    ],
)
def test_plain_http_on_a_public_url_is_a_warning(settings, url, https, warned):
    settings.BERTH_PUBLIC_URL, settings.HTTPS = url, https
    assert [message.id for message in system_checks.check_plain_http()] == ["common.W001"] * warned


@pytest.mark.parametrize(
    ("several", "limit_mib", "warned"), [(True, 0, True), (True, 51200, False), (False, 0, False)]
)
def test_unlimited_homes_with_several_users_are_a_warning(settings, several, limit_mib, warned):
    settings.BERTH_MULTIUSER, settings.BERTH_HOME_LIMIT_MIB = several, limit_mib
    found = system_checks.check_home_limits()
    assert [message.id for message in found] == ["common.W003"] * warned


@pytest.mark.parametrize(("policy", "known"), [("off", True), ("on", True), ("request", False), ("", False)])
def test_unknown_deletion_policy_is_an_error(settings, policy, known):
    settings.BERTH_ACCOUNT_DELETION = policy
    assert [each.id for each in system_checks.account_deletion_is_known()] == ["common.E003"] * (not known)
