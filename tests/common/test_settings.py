"""Errors in settings stop the start and name the variable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from portal.settings import checks, parsing


@pytest.mark.parametrize(
    ("value", "first", "last"), [("", 2000, 2009), ("3000-3001", 3000, 3001), ("3000", 3000, 3000)]
)
def test_port_range_is_parsed(monkeypatch: pytest.MonkeyPatch, value: str, first: int, last: int) -> None:
    monkeypatch.delenv("BERTH_X", raising=False)
    if value:
        monkeypatch.setenv("BERTH_X", value)
    assert parsing.ports("BERTH_X", "2000-2009") == range(first, last + 1)


@pytest.mark.parametrize("value", ["x", "3000-", "-3000", "3001-3000", "80-90", "65535-65536"])
def test_invalid_port_range_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BERTH_X", value)
    with pytest.raises(ImproperlyConfigured, match="BERTH_X"):
        parsing.ports("BERTH_X", "2000-2009")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", {}), ("gpu=4", {"gpu": 4}), ("gpu=4, gpu_hours=500,", {"gpu": 4, "gpu_hours": 500})],
)
def test_amounts_by_resource_are_parsed(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: dict[str, int]
) -> None:
    monkeypatch.setenv("BERTH_X", value)
    assert parsing.amounts("BERTH_X") == expected


@pytest.mark.parametrize("value", ["gpu", "gpu=", "gpu=many", "gpu=1=2", "gpu=4;gpu_hours=500"])
def test_invalid_amounts_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("BERTH_X", value)
    with pytest.raises(ImproperlyConfigured, match="BERTH_X"):
        parsing.amounts("BERTH_X")


def test_secret_is_read_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    monkeypatch.delenv("BERTH_X", raising=False)
    assert parsing.secret("BERTH_X", "x") == ""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "x").write_text("from a file\n")
    assert parsing.secret("BERTH_X", "x") == "from a file"
    monkeypatch.setenv("BERTH_X", "from the environment")
    assert parsing.secret("BERTH_X", "x") == "from the environment"


def test_unreadable_secret_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    monkeypatch.delenv("BERTH_X", raising=False)
    (tmp_path / "secrets" / "x").mkdir(parents=True)
    with pytest.raises(ImproperlyConfigured, match="make it readable or set BERTH_X"):
        parsing.secret("BERTH_X", "x")


@pytest.mark.parametrize(
    ("check", "arguments", "options", "is_valid"),
    [
        (checks.networks, ("BERTH_X", ["10.1.0.0/16"]), {"strict": True, "advice": ""}, True),
        (checks.networks, ("BERTH_X", ["10.1.2.3/16"]), {"strict": True, "advice": ""}, False),
        (checks.networks, ("BERTH_X", ["10.1.2.3/16"]), {"strict": False, "advice": ""}, True),
        (checks.networks, ("BERTH_X", ["proxy"]), {"strict": False, "advice": ""}, False),
        (checks.check_minimum, (1,), {"BERTH_X": 1, "BERTH_Y": 2}, True),
        (checks.check_minimum, (1,), {"BERTH_X": 1, "BERTH_Y": 0}, False),
        (checks.check_vault, ("https://v.example",), {"has_app_role": True, "has_token_file": False}, True),
        (
            checks.check_vault,
            ("http://localhost:8200",),
            {"has_app_role": False, "has_token_file": True},
            True,
        ),
        (checks.check_vault, ("http://v.example",), {"has_app_role": True, "has_token_file": False}, False),
        (checks.check_vault, ("v.example",), {"has_app_role": True, "has_token_file": False}, False),
        (checks.check_vault, ("https://v.example",), {"has_app_role": True, "has_token_file": True}, False),
        (checks.check_vault, ("https://v.example",), {"has_app_role": False, "has_token_file": False}, False),
        (checks.check_site_roles, ("BERTH_X", {"operator"}), {}, True),
        (checks.check_site_roles, ("BERTH_X", {"operator", "king"}), {}, False),
        (checks.check_audit_syslog, ("tls://log.example:6514",), {}, True),
        (checks.check_audit_syslog, ("tls://log.example",), {}, False),
        (checks.check_audit_syslog, ("tls://log.example:port",), {}, False),
        (checks.check_audit_syslog, ("https://log.example:6514",), {}, False),
        (checks.check_audit_webhook, ("https://log.example", "whsec_x"), {}, True),
        (checks.check_audit_webhook, ("https://log.example", ""), {}, False),
        (checks.check_audit_webhook, ("log.example", "whsec_x"), {}, False),
    ],
)
def test_setting_checks(
    check: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], is_valid: bool
) -> None:
    if is_valid:
        check(*arguments, **options)
        return
    with pytest.raises(ImproperlyConfigured, match="BERTH_"):
        check(*arguments, **options)
