"""What django-allauth's protocols ask of the portal: where errors and proven identities go."""

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
    """All outcomes of allauth's protocols end in `portal.people.identity.flow`; its tables stay empty."""

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Somebody has been proven by a protocol. Raises the answer."""
        proven: Proven = sociallogin.proven
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
        """A protocol has not come to its end. Raises the answer, a page that says why."""
        known: Provider = provider.known
        context = extra_context or {}
        told = str(exception or context.get("saml_last_error_reason", ""))[:300]
        log.warning("sign-in by %s failed: %s %s", known.id, error, told)
        began = "state" in context or "saml_errors" in context
        reason = _reason(known, error, exception, began=began, saml=context.get("saml_errors"))
        raise ImmediateHttpResponse(flow.failed(request, known, reason))

    def get_requests_session(self) -> requests.Session:
        """As allauth's, with the time that a provider may take to answer, and without following redirects."""
        session = requests.Session()
        # A redirect raises `TooManyRedirects`, a `RequestException` like every other failure.
        session.max_redirects = 0
        session.request = partial(session.request, timeout=TIMEOUT_S)  # type: ignore[method-assign]
        return session


class Proven:
    """Who a protocol has proven: the provider, its claims, and the nonce in them (None: it knows of none)."""

    __slots__ = ("claims", "nonce", "provider")

    def __init__(self, provider: Provider, claims: dict[str, Any], nonce: str | None = None) -> None:
        self.provider = provider
        self.claims = claims
        self.nonce = nonce


def login_of(proven: Proven, provider: Any) -> SocialLogin:
    """As allauth hands it on. No row is made of it."""
    login = SocialLogin(
        user=User(),
        account=SocialAccount(provider=proven.provider.id, uid="", extra_data={}),
        provider=provider,
    )
    login.proven = proven
    return login


class NotTrusted(requests.RequestException):
    """What a provider answered breaks a rule of the protocol; `args[0]` says which, without values."""


def _reason(
    provider: Provider, error: Any, exception: BaseException | None, *, began: bool, saml: Any
) -> Reason:
    named = {"provider": provider.name}
    if error == AuthError.CANCELLED:
        return Reason(IdentityCode.PROVIDER_CANCELLED, named)
    if isinstance(exception, NotTrusted):
        return Reason(IdentityCode.PROVIDER_WRONG, {**named, "detail": str(exception)})
    if isinstance(exception, RequestException):
        return Reason(IdentityCode.PROVIDER_DOWN, named)
    if saml:
        return Reason(IdentityCode.PROVIDER_WRONG, {**named, "detail": "the response is not valid"})
    if not began:
        return Reason(IdentityCode.SIGN_IN_ENDED)
    return Reason(IdentityCode.PROVIDER_REFUSED, {**named, "detail": "it gave an error"})
