"""Hosts, origins and paths: unknown ones are refused."""

from __future__ import annotations

import pytest
from gateway_support import WS_A

from portal.workspaces.gateway.hosts import local_path, same_origin, workspace_of_host, workspace_uuid


@pytest.mark.parametrize(
    "host",
    [
        f"{WS_A}.localhost",
        f"{WS_A}.localhost:8000",
        f"{WS_A.upper()}.LocalHost:8000",
        f"{WS_A}.localhost.:8000",
    ],
)
def test_workspace_host_is_recognized_in_any_spelling(host: str) -> None:
    assert workspace_of_host(host, "localhost") == WS_A


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        f"{WS_A}.localhost.evil.example",
        f"{WS_A}.evil.example",
        f"x.{WS_A}.localhost",
        f"{WS_A}0.localhost",
        f"{WS_A}.localhost:0",
        f"{WS_A}.localhost:99999",
        f"{WS_A}.localhost:80:80",
        f"{WS_A}.localhost..",
        f"{WS_A}.localhost/",
        f"user@{WS_A}.localhost",
        f"{WS_A}.localhost\n",
        "ws-" + "g" * 32 + ".localhost",
        "ws-" + "１" * 32 + ".localhost",
    ],
)
def test_other_hosts_are_not_recognized(host: str) -> None:
    assert workspace_of_host(host, "localhost") is None


def test_uuid_is_parsed_from_the_external_name() -> None:
    assert workspace_uuid(WS_A) == "11111111-2222-3333-4444-555555555555"
    with pytest.raises(ValueError, match="external name"):
        workspace_uuid("ws-1")


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "same"),
    [
        ("http://a.localhost:8000", "a.localhost:8000", "http", True),
        ("http://A.localhost", "a.localhost:80", "http", True),
        ("https://a.example", "a.example:443", "https", True),
        ("https://a.example", "a.example", "https", True),
        ("http://a.localhost:8000", "a.localhost:8001", "http", False),
        ("http://b.localhost:8000", "a.localhost:8000", "http", False),
        ("https://a.localhost:8000", "a.localhost:8000", "http", False),
        ("http://a.localhost:8000/", "a.localhost:8000", "http", False),
        ("http://a.localhost:8000@evil", "a.localhost:8000", "http", False),
        ("http://a.localhost:8000, http://evil", "a.localhost:8000", "http", False),
        ("null", "a.localhost:8000", "http", False),
        ("", "a.localhost:8000", "http", False),
    ],
)
def test_origins_are_compared_whole(origin: str, host: str, scheme: str, same: bool) -> None:
    assert same_origin(origin, host, scheme) is same


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/lab", "/lab"),
        ("/lab/tree/my file.ipynb?reset", "/lab/tree/my%20file.ipynb?reset"),
        ("/lab/tree/%C3%A9", "/lab/tree/%C3%A9"),
        ("/lab/tree/é#cell", "/lab/tree/%C3%A9#cell"),
        ("/a//b", "/a//b"),
    ],
)
def test_local_paths_are_kept(target: str, path: str) -> None:
    assert local_path(target) == path


@pytest.mark.parametrize(
    "target",
    [
        "",
        "lab",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https://evil.example",
        "javascript:alert(1)",
        " /lab",
        "/\t/evil.example",
        "/lab\r\nSet-Cookie: x=1",
        "/lab\x00",
        "/./" + "/evil.example",
        "/..//evil.example",
        "/%2e//evil.example",
        "//[",
    ],
)
def test_unsafe_redirect_targets_become_the_root(target: str) -> None:
    assert local_path(target) == "/"
