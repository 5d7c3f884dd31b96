"""Names of clients in lists of sessions."""

from __future__ import annotations

import pytest

from portal.common.user_agents import client_name


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox on Linux"),
        (
            "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
            "Chrome/140.0.0.0 Safari/537.36 Edg/140.0.0.0",
            "Edge on Windows",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
            "Version/18.5 Mobile/15E148 Safari/604.1",
            "Safari on iOS",
        ),
        (
            "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) "
            "Chrome/140.0.0.0 Mobile Safari/537.36",
            "Chrome on Android",
        ),
        ("Mozilla/5.0 (compatible; scanner)", "Mozilla/5.0 (compatible; scanner)"),
        ("curl/8.5.0", "curl/8.5.0"),
        ("berth/0.1.0 (httpx)", "berth/0.1.0"),
        ("", ""),
    ],
)
def test_a_client_is_named_by_its_user_agent(user_agent, name):
    assert client_name(user_agent) == name
