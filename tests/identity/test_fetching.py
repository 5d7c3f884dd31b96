"""The portal's own requests to a provider follow no redirects elsewhere."""

from __future__ import annotations

import pytest
import requests
from allauth.socialaccount.adapter import get_adapter

from portal.people.identity import oidc
from tests.receivers import receiver, status


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_of_a_provider_are_not_followed(code):
    with receiver() as inside, receiver(status(code, Location=f"{inside.url}/admin")) as provider:
        with pytest.raises(requests.TooManyRedirects):
            oidc._fetch_json(f"{provider.url}/.well-known/openid-configuration")
        with get_adapter().get_requests_session() as session, pytest.raises(requests.RequestException):
            session.post(f"{provider.url}/token", data={"client_secret": "hush"})
        assert len(provider.requests) == 2
        assert inside.requests == []
