"""SAML 2.0, sign-in begun here: django-allauth's provider and states around python3-saml, made stricter.

The assertion has to be signed and to answer a request of this very browser that has not been answered yet,
and says so itself: what surrounds it may be anybody's. Nothing that was not asked for is taken.
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
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_NAMES = {"saml": "urn:oasis:names:tc:SAML:2.0:assertion"}
_TRANSIENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"
log = logging.getLogger(__name__)


def begin(request: HttpRequest, known: Saml, *, wanted: str = "", test: bool = False) -> HttpResponse:
    """Send the browser to the provider. Raises `NotTrusted` where the settings cannot be used."""
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
    """Keep a response that a provider's page has posted; the browser comes for it with its session.

    The cookie of the session does not come with a form of another site.
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
    """The answer to a browser that brings a response of its own."""
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
    """What the provider has to know of the portal, in XML."""
    settings = OneLogin_Saml2_Settings(_config(request, known), sp_validation_only=True)
    text = settings.get_sp_metadata()
    return text.decode() if isinstance(text, bytes) else str(text)


def entity_id(known: Saml) -> str:
    """How the portal is called at the provider: where its metadata are."""
    return public_url() + reverse("identity:saml-metadata", args=[known.id])


def _state(request: HttpRequest, known: Saml, auth: OneLogin_Saml2_Auth) -> dict[str, Any] | None:
    """What was kept of the request that the assertion answers; None where there is none (any more)."""
    answered = _answered(auth)
    if not answered or answered != auth.get_last_response_in_response_to():
        return None
    state: dict[str, Any] | None = statekit.unstash_state(request, provider_id=known.id, state_id=answered)
    return state


def _answered(auth: OneLogin_Saml2_Auth) -> str:
    """The request that the signed assertion itself names."""
    # python3-saml has parsed it with entities and document types refused.
    document = etree.fromstring(
        auth.get_last_response_xml().encode(), etree.XMLParser(resolve_entities=False, no_network=True)
    )
    path = "//saml:Assertion/saml:Subject/saml:SubjectConfirmation/saml:SubjectConfirmationData"
    found = {node.get("InResponseTo", "") for node in document.xpath(path, namespaces=_NAMES)}
    return str(found.pop()) if len(found) == 1 else ""


def _claims(auth: OneLogin_Saml2_Auth) -> dict[str, Any]:
    """The attributes by their names, also the friendly ones, and what the assertion says of the sign-in."""
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
    """python3-saml's settings, as allauth builds them, with our own addresses. Raises `NotTrusted`."""
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
        # The next one stands beside the present one while the provider changes it.
        config["idp"]["x509certMulti"] = {"signing": certificates}
    config["sp"]["assertionConsumerService"]["url"] = public_url() + reverse(
        "identity:saml-acs", args=[known.id]
    )
    del config["sp"]["singleLogoutService"]
    return config
