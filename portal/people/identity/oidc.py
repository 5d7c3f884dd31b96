"""OpenID Connect: django-allauth's code flow with a nonce and full verification of ID tokens.

The specification lets a client skip verification of tokens received over TLS, and allauth does. This module
verifies signature, issuer, audience, times and nonce of each ID token, and that UserInfo has the same
subject. Keys and discovery are fetched at each sign-in, so that rotated keys work immediately.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import jwt
from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.models import SocialApp, SocialLogin
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from portal.common.htmx import public_url
from portal.people.identity import flow
from portal.people.identity.config import LOCAL_HOSTS, Oidc, read_secret
from portal.people.identity.social import NotTrusted, VerifiedIdentity, login_of

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
OF_THE_TOKEN = ("iss", "sub", "aud", "exp", "iat", "nonce", "azp", "amr", "acr", "auth_time")
"""Claims of the ID token that UserInfo cannot override."""
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
LOGOUT_LIFETIME_S = 300


class _Provider(OpenIDConnectProvider):
    """allauth's provider, configured from the file instead of a database row."""

    def __init__(self, request: HttpRequest, provider: Oidc) -> None:
        self.provider_config = provider
        app = SocialApp(
            provider=OpenIDConnectProvider.id,
            provider_id=provider.id,
            name=provider.name,
            client_id=provider.client_id,
            secret=read_secret(provider.client_secret) if provider.client_secret else "",
            settings={
                "server_url": provider.issuer.rstrip("/"),
                "oauth_pkce_enabled": True,
                "scope": list(provider.scopes),
            },
        )
        super().__init__(request, app=app)

    def get_oauth2_adapter(self, request: HttpRequest) -> Adapter:
        return Adapter(request, self.provider_config)


class Adapter(OpenIDConnectOAuth2Adapter):
    """The protocol with one provider, for one request."""

    def __init__(self, request: HttpRequest, provider: Oidc) -> None:
        super().__init__(request, provider.id)
        self.provider_config = provider

    def get_provider(self) -> _Provider:
        return _Provider(self.request, self.provider_config)

    @property
    def openid_config(self) -> dict[str, Any]:
        if not hasattr(self, "_openid_config"):
            self._openid_config = discovery_document(self.provider_config)
        return self._openid_config

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        return public_url() + reverse("identity:oidc-callback", args=[self.provider_config.id])

    def complete_login(self, request: HttpRequest, app: SocialApp, token: Any, **kwargs: Any) -> SocialLogin:
        """Return the login for a token response. Raises `NotTrusted` and `RequestException`."""
        id_token = kwargs["response"].get("id_token")
        if not isinstance(id_token, str):
            raise NotTrusted("it has no ID token")
        claims = verified_claims(self.provider_config, self.openid_config, id_token)
        if self.provider_config.userinfo and self.openid_config.get("userinfo_endpoint"):
            userinfo = self._fetch_user_info(token.token)
            if not isinstance(userinfo, dict) or userinfo.get("sub") != claims["sub"]:
                raise NotTrusted("UserInfo describes another user")
            claims = {**claims, **userinfo, **{name: claims[name] for name in OF_THE_TOKEN if name in claims}}
        nonce = str(claims.get("nonce", ""))
        return login_of(
            VerifiedIdentity(self.provider_config, {**claims, "_id_token": id_token}, nonce),
            self.get_provider(),
        )


def begin(request: HttpRequest, provider: Oidc, *, next_url: str = "", test: bool = False) -> HttpResponse:
    """Redirect the browser to the provider. Raises `RequestException` if it does not answer."""
    nonce = secrets.token_urlsafe(32)
    oauth_provider = _Provider(request, provider)
    auth_params = {"nonce": nonce}
    if test:
        auth_params["prompt"] = "login"
    response: HttpResponse = oauth_provider.redirect(
        request,
        process="login",
        next_url=next_url,
        data=flow.state_data(request, nonce=nonce, test=test),
        auth_params=auth_params,
    )
    return response


def callback(request: HttpRequest, provider: Oidc) -> HttpResponse:
    """Handle the browser's return from the provider."""
    response: HttpResponse = OAuth2CallbackView.adapter_view(Adapter(request, provider))(request)
    return response


def discovery_document(provider: Oidc) -> dict[str, Any]:
    """Return the provider's discovery document. Raises `RequestException` and `NotTrusted`."""
    url = provider.issuer.rstrip("/") + "/.well-known/openid-configuration"
    config = _fetch_json(url)
    if str(config.get("issuer", "")).rstrip("/") != provider.issuer.rstrip("/"):
        raise NotTrusted("its discovery document names another issuer")
    for name in ENDPOINTS:
        parts = urlsplit(str(config.get(name, "")))
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOCAL_HOSTS):
            raise NotTrusted(f"its discovery document has no secure {name}")
    return config


def verified_claims(
    provider: Oidc, config: Mapping[str, Any], token: str, *, logout: bool = False
) -> dict[str, Any]:
    """Verify an ID token or logout token, except its nonce. Returns the claims. Raises `NotTrusted`."""
    try:
        header = jwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise NotTrusted("its signature algorithm is not allowed")
        claims: dict[str, Any] = jwt.decode(
            token,
            key=_key(str(config["jwks_uri"]), header.get("kid")),
            algorithms=[algorithm],
            audience=provider.client_id,
            issuer=str(config["issuer"]),
            leeway=provider.clock_skew_s,
            options={"require": ["iss", "aud", "iat", "sub", *([] if logout else ["exp"])]},
        )
    except jwt.ExpiredSignatureError as error:
        raise NotTrusted("it has expired") from error
    except jwt.ImmatureSignatureError as error:
        raise NotTrusted("its time is in the future; check the clocks") from error
    except jwt.InvalidAudienceError as error:
        raise NotTrusted("it is meant for another application") from error
    except jwt.InvalidIssuerError as error:
        raise NotTrusted("it is from another issuer") from error
    except jwt.PyJWTError as error:
        raise NotTrusted("its signature or form is not valid") from error
    audience = claims["aud"]
    has_several = isinstance(audience, list) and len(audience) > 1
    if claims.get("azp", None if has_several else provider.client_id) != provider.client_id:
        raise NotTrusted("it is meant for another application")
    if logout != (LOGOUT_EVENT in _events(claims)):
        raise NotTrusted("it is the wrong type of token")
    return claims


def signed_out_subject(provider: Oidc, token: str) -> str:
    """Return the subject of a logout token (back-channel logout). Raises `NotTrusted`."""
    claims = verified_claims(provider, discovery_document(provider), token, logout=True)
    age_s = time.time() - float(claims["iat"])
    if "nonce" in claims or age_s > LOGOUT_LIFETIME_S:
        raise NotTrusted("it is not a recent logout token")
    return str(claims["sub"])


def end_session_url(provider: Oidc, id_token: str, back: str) -> str:
    """Return the URL that ends the session at the provider, or "" if it has none.

    Raises `RequestException` and `NotTrusted`.
    """
    endpoint = str(discovery_document(provider).get("end_session_endpoint", ""))
    if not endpoint:
        return ""
    query = {"id_token_hint": id_token, "client_id": provider.client_id, "post_logout_redirect_uri": back}
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"


def _events(claims: Mapping[str, Any]) -> Mapping[str, Any]:
    events = claims.get("events")
    return events if isinstance(events, Mapping) else {}


def _key(url: str, kid: Any) -> Any:
    """Return the provider's key with this id, or its only key if the token names none.

    Raises `NotTrusted` if there is no unique match.
    """
    keys = jwt.PyJWKSet.from_dict(_fetch_json(url)).keys
    signing = [key for key in keys if key.public_key_use in (None, "sig")]
    matching = [key for key in signing if kid is None or key.key_id == kid]
    if len(matching) != 1:
        raise NotTrusted("it is signed with a key that the provider does not have")
    return matching[0].key


def _fetch_json(url: str) -> dict[str, Any]:
    with get_adapter().get_requests_session() as session:
        response = session.get(url)
        response.raise_for_status()
        document = response.json()
    if not isinstance(document, dict):
        raise NotTrusted("it is not a JSON object")
    return document
