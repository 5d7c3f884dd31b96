"""django-allauth's social account adapter: receives proven identities and errors."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import requests
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount, SocialLogin
from allauth.socialaccount.providers.base.constants import AuthError
from django.http import HttpRequest
from requests import RequestException

from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.people.identity import flow
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import Provider

TIMEOUT_S = 5
log = logging.getLogger(__name__)


class SocialAdapter(DefaultSocialAccountAdapter):
    """Passes all outcomes of allauth's protocols to `portal.people.identity.flow`. Its tables stay empty."""

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Finish a proven sign-in. Raises the response."""
        proven: VerifiedIdentity = sociallogin.proven
        raise ImmediateHttpResponse(
            flow.finish(request, proven.provider, proven.claims, sociallogin.state, nonce=proven.nonce)
        )

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: Any = None,
        exception: BaseException | None = None,
        extra_context: dict[str, Any] | None = None,
    ) -> None:
        """Handle a protocol error. Raises the response, an error page."""
        provider_: Provider = provider.provider_config
        context = extra_context or {}
        detail = str(exception or context.get("saml_last_error_reason", ""))[:300]
        log.warning("sign-in through %s failed: %s %s", provider_.id, error, detail)
        began = "state" in context or "saml_errors" in context
        reason = _reason(provider_, error, exception, began=began, saml=context.get("saml_errors"))
        raise ImmediateHttpResponse(flow.render_failure(request, provider_, reason))

    def get_requests_session(self) -> requests.Session:
        """Return a requests session with a timeout, and without following redirects."""
        session = requests.Session()
        # A redirect raises `TooManyRedirects`, a `RequestException`.
        session.max_redirects = 0
        session.request = partial(session.request, timeout=TIMEOUT_S)  # type: ignore[method-assign]
        return session


class VerifiedIdentity:
    """A proven identity: provider, claims, and their nonce (None if the protocol has none)."""

    __slots__ = ("claims", "nonce", "provider")

    def __init__(self, provider: Provider, claims: dict[str, Any], nonce: str | None = None) -> None:
        self.provider = provider
        self.claims = claims
        self.nonce = nonce


def login_of(proven: VerifiedIdentity, provider: Any) -> SocialLogin:
    """Return an allauth login for a proven identity. It is never saved."""
    login = SocialLogin(
        user=User(),
        account=SocialAccount(provider=proven.provider.id, uid="", extra_data={}),
        provider=provider,
    )
    login.proven = proven
    return login


class NotTrusted(requests.RequestException):
    """A provider's response violates the protocol. `args[0]` describes the violation, without values."""


def _reason(
    provider: Provider, error: Any, exception: BaseException | None, *, began: bool, saml: Any
) -> Reason:
    params = {"provider": provider.name}
    if error == AuthError.CANCELLED:
        return Reason(IdentityCode.PROVIDER_CANCELLED, params)
    if isinstance(exception, NotTrusted):
        return Reason(IdentityCode.PROVIDER_WRONG, {**params, "detail": str(exception)})
    if isinstance(exception, RequestException):
        return Reason(IdentityCode.PROVIDER_DOWN, params)
    if saml:
        return Reason(IdentityCode.PROVIDER_WRONG, {**params, "detail": "it is not valid"})
    if not began:
        return Reason(IdentityCode.SIGN_IN_ENDED)
    return Reason(IdentityCode.PROVIDER_REFUSED, {**params, "detail": "it returned an error"})
