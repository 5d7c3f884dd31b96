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


def begin(request: HttpRequest, known: Saml, *, wanted: str = "", test: bool = False) -> HttpResponse:
    """Redirect the browser to the provider. Raises `NotTrusted` if the settings are unusable."""
    auth = _auth(request, known)
    url = auth.login(return_to="", force_authn=test)
    _provider(request, known).stash_redirect_state(
        request,
        "login",
        wanted,
        flow.state_data(request, test=test),
        state_id=auth.get_last_request_id(),
    )
    return HttpResponseRedirect(url)


def take(request: HttpRequest, known: Saml) -> HttpResponse:
    """Store a posted response and redirect, so that the browser returns with its session.

    The session cookie is not sent with cross-site form posts.
    """
    given = request.POST.get("SAMLResponse", "")
    if not given or len(given) > MAX_RESPONSE:
        return flow.failed(request, known, _wrong(known, "there is no response that could be read"))
    answer = HttpResponseRedirect(reverse("identity:saml-finish", args=[known.id]))
    kept = LoginSession(request, "saml_response", KEPT)
    kept.store.update({"given": given, "provider": known.id})
    kept.save(answer)
    return answer


def finish(request: HttpRequest, known: Saml) -> HttpResponse:
    """Process the stored response in the session that it was posted for."""
    kept = LoginSession(request, "saml_response", KEPT)
    given = kept.store.get("given", "") if kept.store.get("provider") == known.id else ""
    kept.delete()
    if not given:
        return flow.failed(request, known, Reason(IdentityCode.SIGN_IN_ENDED))
    auth = _auth(request, known, given)
    try:
        auth.process_response()
        errors = auth.get_errors()
    except (
        OneLogin_Saml2_Error, OneLogin_Saml2_ValidationError, binascii.Error, etree.LxmlError, ValueError
    ) as error:  # fmt: skip
        log.warning("a response of %s cannot be read: %s", known.id, str(error)[:300])
        return flow.failed(request, known, _wrong(known, "the response cannot be read"))
    if errors or not auth.is_authenticated():
        log.warning("a response of %s is refused: %s %s", known.id, errors, auth.get_last_error_reason())
        return flow.failed(request, known, _wrong(known, "the response is not valid"))
    state = _state(request, known, auth)
    if state is None:
        return flow.failed(request, known, Reason(IdentityCode.SIGN_IN_ENDED))
    if known.claims.subject == "NameID" and auth.get_nameid_format() == _TRANSIENT:
        return flow.failed(request, known, _wrong(known, "its NameID is another one at each sign-in"))
    return flow.finish(request, known, _claims(auth), state)


def metadata(request: HttpRequest, known: Saml) -> str:
    """Return the service provider metadata, in XML."""
    settings = OneLogin_Saml2_Settings(_config(request, known), sp_validation_only=True)
    text = settings.get_sp_metadata()
    return text.decode() if isinstance(text, bytes) else str(text)


def entity_id(known: Saml) -> str:
    """Return the portal's entity id: the URL of its metadata."""
    return public_url() + reverse("identity:saml-metadata", args=[known.id])


def _state(request: HttpRequest, known: Saml, auth: OneLogin_Saml2_Auth) -> dict[str, Any] | None:
    """Return the state of the request that the assertion answers, or None if there is none or it is used."""
    answered = _answered(auth)
    if not answered or answered != auth.get_last_response_in_response_to():
        return None
    state: dict[str, Any] | None = statekit.unstash_state(request, provider_id=known.id, state_id=answered)
    return state


def _answered(auth: OneLogin_Saml2_Auth) -> str:
    """Return the request id named by the signed assertion itself."""
    # python3-saml has parsed it with entities and DTDs disabled.
    document = etree.fromstring(
        auth.get_last_response_xml().encode(), etree.XMLParser(resolve_entities=False, no_network=True)
    )
    path = "//saml:Assertion/saml:Subject/saml:SubjectConfirmation/saml:SubjectConfirmationData"
    found = {node.get("InResponseTo", "") for node in document.xpath(path, namespaces=_NAMES)}
    return str(found.pop()) if len(found) == 1 else ""


def _claims(auth: OneLogin_Saml2_Auth) -> dict[str, Any]:
    """Return the attributes, also by friendly names, with NameID and authentication context."""
    contexts = auth.get_last_authn_contexts()
    return {
        **auth.get_friendlyname_attributes(),
        **auth.get_attributes(),
        "NameID": auth.get_nameid() or "",
        "AuthnContextClassRef": contexts,
    }


def _wrong(known: Saml, detail: str) -> Reason:
    return Reason(IdentityCode.PROVIDER_WRONG, {"provider": known.name, "detail": detail})


def _provider(request: HttpRequest, known: Saml) -> SAMLProvider:
    app = SocialApp(provider=SAMLProvider.id, provider_id=known.id, name=known.name, client_id=known.id)
    return SAMLProvider(request, app=app)


def _auth(request: HttpRequest, known: Saml, given: str = "") -> OneLogin_Saml2_Auth:
    here = urlsplit(public_url())
    asked = {
        "https": "on" if here.scheme == "https" else "off",
        "http_host": here.netloc,
        "script_name": reverse("identity:saml-acs", args=[known.id]),
        "get_data": {},
        "post_data": {"SAMLResponse": given} if given else {},
    }
    return OneLogin_Saml2_Auth(asked, _config(request, known))


def _config(request: HttpRequest, known: Saml) -> dict[str, Any]:
    """Return settings for python3-saml, built by allauth, with the portal's URLs. Raises `NotTrusted`."""
    try:
        certificates = _PEM.findall(read_secret(known.certificate))
    except ConfigError as error:
        raise NotTrusted("its certificate cannot be read here") from error
    settings = {
        "idp": {
            "entity_id": known.entity_id,
            "sso_url": known.sso_url,
            "x509cert": certificates[0] if certificates else "",
        },
        "sp": {"entity_id": entity_id(known)},
        "advanced": {
            "strict": True,
            "want_assertion_signed": True,
            "want_name_id": False,
            "want_attribute_statement": False,
            "allow_single_label_domains": True,
            "reject_deprecated_algorithm": True,
        },
    }
    config: dict[str, Any] = build_saml_config(request, settings, known.id)
    if len(certificates) > 1:
        # Several certificates are valid during key rotation.
        config["idp"]["x509certMulti"] = {"signing": certificates}
    config["sp"]["assertionConsumerService"]["url"] = public_url() + reverse(
        "identity:saml-acs", args=[known.id]
    )
    del config["sp"]["singleLogoutService"]
    return config
