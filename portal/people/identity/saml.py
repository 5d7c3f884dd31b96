"""SAML 2.0 with sign-in started here, based on django-allauth and python3-saml, with stricter checks.

The assertion must be signed and must itself name a pending request of this browser; the surrounding response
is not trusted. Unsolicited responses are rejected.
"""

from __future__ import annotations

import binascii
import logging
import re
from typing import Any
from urllib.parse import urlsplit

from allauth.socialaccount.internal import statekit
from allauth.socialaccount.models import SocialApp
from allauth.socialaccount.providers.saml.provider import SAMLProvider
from allauth.socialaccount.providers.saml.utils import build_saml_config
from allauth.socialaccount.sessions import LoginSession
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from lxml import etree
from onelogin.saml2.auth import OneLogin_Saml2_Auth
from onelogin.saml2.errors import OneLogin_Saml2_Error, OneLogin_Saml2_ValidationError
from onelogin.saml2.settings import OneLogin_Saml2_Settings

from portal.common.htmx import public_url
from portal.common.reasons.reason import Reason
from portal.people.identity import flow
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import ConfigError, Saml, read_secret
from portal.people.identity.social import NotTrusted

MAX_RESPONSE = 200_000
KEPT = "saml-response"
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
_NAMES = {"saml": "urn:oasis:names:tc:SAML:2.0:assertion"}
_TRANSIENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"
log = logging.getLogger(__name__)


def begin(request: HttpRequest, provider: Saml, *, next_url: str = "", test: bool = False) -> HttpResponse:
    """Redirect the browser to the provider. Raises `NotTrusted` if the settings are unusable."""
    auth = _auth(request, provider)
    url = auth.login(return_to="", force_authn=test)
    _provider(request, provider).stash_redirect_state(
        request,
        "login",
        next_url,
        flow.state_data(request, test=test),
        state_id=auth.get_last_request_id(),
    )
    return HttpResponseRedirect(url)


def store_response(request: HttpRequest, provider: Saml) -> HttpResponse:
    """Store a posted response and redirect, so that the browser returns with its session.

    The session cookie is not sent with cross-site form posts.
    """
    response = request.POST.get("SAMLResponse", "")
    if not response or len(response) > MAX_RESPONSE:
        return flow.render_failure(request, provider, _wrong_response(provider, "it is missing or too long"))
    answer = HttpResponseRedirect(reverse("identity:saml-finish", args=[provider.id]))
    login_session = LoginSession(request, "saml_response", KEPT)
    login_session.store.update({"given": response, "provider": provider.id})
    login_session.save(answer)
    return answer


def finish(request: HttpRequest, provider: Saml) -> HttpResponse:
    """Process the stored response in the session that it was posted for."""
    login_session = LoginSession(request, "saml_response", KEPT)
    response = (
        login_session.store.get("given", "") if login_session.store.get("provider") == provider.id else ""
    )
    login_session.delete()
    if not response:
        return flow.render_failure(request, provider, Reason(IdentityCode.SIGN_IN_ENDED))
    auth = _auth(request, provider, response)
    try:
        auth.process_response()
        errors = auth.get_errors()
    except (
        OneLogin_Saml2_Error, OneLogin_Saml2_ValidationError, binascii.Error, etree.LxmlError, ValueError
    ) as error:  # fmt: skip
        log.warning("unreadable SAML response from %s: %s", provider.id, str(error)[:300])
        return flow.render_failure(request, provider, _wrong_response(provider, "it cannot be read"))
    if errors or not auth.is_authenticated():
        log.warning(
            "rejected SAML response from %s: %s %s", provider.id, errors, auth.get_last_error_reason()
        )
        return flow.render_failure(request, provider, _wrong_response(provider, "it is not valid"))
    state = _state(request, provider, auth)
    if state is None:
        return flow.render_failure(request, provider, Reason(IdentityCode.SIGN_IN_ENDED))
    if provider.claims.subject == "NameID" and auth.get_nameid_format() == _TRANSIENT:
        return flow.render_failure(
            request, provider, _wrong_response(provider, "its NameID changes with each sign-in")
        )
    return flow.finish(request, provider, _claims(auth), state)


def metadata(request: HttpRequest, provider: Saml) -> str:
    """Return the service provider metadata, in XML."""
    settings = OneLogin_Saml2_Settings(_config(request, provider), sp_validation_only=True)
    text = settings.get_sp_metadata()
    return text.decode() if isinstance(text, bytes) else str(text)


def entity_id(provider: Saml) -> str:
    """Return the portal's entity id: the URL of its metadata."""
    return public_url() + reverse("identity:saml-metadata", args=[provider.id])


def _state(request: HttpRequest, provider: Saml, auth: OneLogin_Saml2_Auth) -> dict[str, Any] | None:
    """Return the state of the request that the assertion answers, or None if it is missing or used."""
    answered = _signed_request_id(auth)
    if not answered or answered != auth.get_last_response_in_response_to():
        return None
    state: dict[str, Any] | None = statekit.unstash_state(request, provider_id=provider.id, state_id=answered)
    return state


def _signed_request_id(auth: OneLogin_Saml2_Auth) -> str:
    """Return the request id named by the signed assertion itself."""
    # python3-saml has parsed it with entities and DTDs disabled.
    document = etree.fromstring(
        auth.get_last_response_xml().encode(), etree.XMLParser(resolve_entities=False, no_network=True)
    )
    path = "//saml:Assertion/saml:Subject/saml:SubjectConfirmation/saml:SubjectConfirmationData"
    request_ids = {node.get("InResponseTo", "") for node in document.xpath(path, namespaces=_NAMES)}
    return str(request_ids.pop()) if len(request_ids) == 1 else ""


def _claims(auth: OneLogin_Saml2_Auth) -> dict[str, Any]:
    """Return the attributes, also by friendly names, with NameID and authentication context."""
    contexts = auth.get_last_authn_contexts()
    return {
        **auth.get_friendlyname_attributes(),
        **auth.get_attributes(),
        "NameID": auth.get_nameid() or "",
        "AuthnContextClassRef": contexts,
    }


def _wrong_response(provider: Saml, detail: str) -> Reason:
    return Reason(IdentityCode.PROVIDER_WRONG, {"provider": provider.name, "detail": detail})


def _provider(request: HttpRequest, provider: Saml) -> SAMLProvider:
    app = SocialApp(
        provider=SAMLProvider.id, provider_id=provider.id, name=provider.name, client_id=provider.id
    )
    return SAMLProvider(request, app=app)


def _auth(request: HttpRequest, provider: Saml, response: str = "") -> OneLogin_Saml2_Auth:
    site_url = urlsplit(public_url())
    request_data = {
        "https": "on" if site_url.scheme == "https" else "off",
        "http_host": site_url.netloc,
        "script_name": reverse("identity:saml-acs", args=[provider.id]),
        "get_data": {},
        "post_data": {"SAMLResponse": response} if response else {},
    }
    return OneLogin_Saml2_Auth(request_data, _config(request, provider))


def _config(request: HttpRequest, provider: Saml) -> dict[str, Any]:
    """Return settings for python3-saml, built by allauth, with the portal's URLs. Raises `NotTrusted`."""
    try:
        certificates = _PEM.findall(read_secret(provider.certificate))
    except ConfigError as error:
        raise NotTrusted("its certificate cannot be read here") from error
    settings = {
        "idp": {
            "entity_id": provider.entity_id,
            "sso_url": provider.sso_url,
            "x509cert": certificates[0] if certificates else "",
        },
        "sp": {"entity_id": entity_id(provider)},
        "advanced": {
            "strict": True,
            "want_assertion_signed": True,
            "want_name_id": False,
            "want_attribute_statement": False,
            "allow_single_label_domains": True,
            "reject_deprecated_algorithm": True,
        },
    }
    config: dict[str, Any] = build_saml_config(request, settings, provider.id)
    if len(certificates) > 1:
        # Several certificates are valid during key rotation.
        config["idp"]["x509certMulti"] = {"signing": certificates}
    config["sp"]["assertionConsumerService"]["url"] = public_url() + reverse(
        "identity:saml-acs", args=[provider.id]
    )
    del config["sp"]["singleLogoutService"]
    return config
