"""Passkeys (WebAuthn): options for the browser and verification of its responses.

Only the portal's own origin is accepted. The standard would also let a subdomain request the portal's
passkeys, and workspaces run on subdomains (`ws-….<domain>`): a notebook could use the response for its own
session. Challenges are stored in the session, for one purpose, one use and 5 minutes.
"""

from __future__ import annotations

import hashlib
import time
from enum import StrEnum
from typing import Any

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import salted_hmac
from fido2.server import Fido2Server
from fido2.utils import websafe_decode
from fido2.webauthn import (
    AttestedCredentialData,
    AuthenticationResponse,
    PublicKeyCredentialDescriptor,
    PublicKeyCredentialRpEntity,
    PublicKeyCredentialType,
    PublicKeyCredentialUserEntity,
    RegistrationResponse,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from portal.common.errors import InvalidInput
from portal.common.json_input import InvalidJson, parse_json
from portal.common.reasons.reason import Reason
from portal.people.accounts.mfa.codes import MfaCode
from portal.people.accounts.models import AccountState, User

STATE = "berth_passkey"
LIFETIME_S = 300
MAX_ANSWER = 20_000


class ChallengePurpose(StrEnum):
    """Purpose of a challenge. A response is valid only for the same purpose."""

    ADD = "add"
    SIGN_IN = "sign_in"
    SECOND_FACTOR = "second_factor"
    CONFIRM = "confirm"


def options_to_add(request: HttpRequest, user: User) -> dict[str, Any]:
    """Return the options for `navigator.credentials.create`. Prefers a discoverable passkey."""
    options, state = _server(request).register_begin(
        user=PublicKeyCredentialUserEntity(id=user.pk.bytes, name=user.username, display_name=user.username),
        credentials=[data for _row, data in _passkeys_of(user)],
        resident_key_requirement=ResidentKeyRequirement.PREFERRED,
        user_verification=UserVerificationRequirement.PREFERRED,
        extensions={"credProps": True},
    )
    _store_state(request, ChallengePurpose.ADD, state)
    return dict(options)


def new_credential(request: HttpRequest, answer: str) -> dict[str, Any]:
    """Return the new credential from a valid response to `options_to_add`. Raises `InvalidInput`."""
    parsed = _parse(answer)
    state = _take_state(request, ChallengePurpose.ADD)
    try:
        response = RegistrationResponse.from_dict(parsed)
        auth_data = _server(request).register_complete(state, response)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(Reason(MfaCode.PASSKEY_REFUSED)) from error
    _require_top_level(response)
    return {"credential": dict(response), "counter": auth_data.counter, "rp": _relying_party(request)[0]}


def options_to_use(
    request: HttpRequest, purpose: ChallengePurpose, *, user: User | None = None, name: str = ""
) -> dict[str, Any]:
    """Return the options for `navigator.credentials.get`.

    With `user`, only the user's passkeys are allowed. Otherwise any passkey of the portal is, with user
    verification (PIN or biometrics). `name` restricts it to that account's passkeys. For an account without
    passkeys, a fake credential id is returned, so as not to reveal which accounts exist.
    """
    credentials: list[Any] | None = None
    if user is not None:
        credentials = [data for _row, data in _passkeys_of(user)]
    elif name:
        account = User.objects.with_state(AccountState.ACTIVE).filter(username=name).first()
        credentials = [data for _row, data in _passkeys_of(account)] if account else []
        credentials = credentials or [_fake_credential(name)]
    strict = purpose is ChallengePurpose.SIGN_IN
    options, state = _server(request).authenticate_begin(
        credentials=credentials,
        user_verification=UserVerificationRequirement.REQUIRED
        if strict
        else UserVerificationRequirement.PREFERRED,
    )
    _store_state(request, purpose, state)
    return dict(options)


def verify_response(
    request: HttpRequest, purpose: ChallengePurpose, answer: str, *, user: User | None = None
) -> Authenticator:
    """Verify a response. Returns the passkey with its user and records its use. Raises `InvalidInput`.

    Without `user`, the response identifies the user and the signature proves it.
    """
    parsed = _parse(answer)
    state = _take_state(request, purpose)
    try:
        response = AuthenticationResponse.from_dict(parsed)
        rows = _passkeys_of(user) if user is not None else _by_id(response.raw_id)
        credential = _server(request).authenticate_complete(state, [data for _row, data in rows], response)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(Reason(MfaCode.PASSKEY_REFUSED)) from error
    _require_top_level(response)
    row = next(row for row, data in rows if data.credential_id == credential.credential_id)
    handle = response.response.user_handle
    if handle and handle != row.user.pk.bytes:
        raise InvalidInput(Reason(MfaCode.PASSKEY_REFUSED))
    counter = response.response.authenticator_data.counter
    # A counter that does not increase indicates a cloned passkey. Passkeys without a counter stay at 0.
    if counter and counter <= row.data.get("counter", 0):
        raise InvalidInput(Reason(MfaCode.PASSKEY_COPIED))
    row.data["counter"] = counter
    row.last_used_at = timezone.now()
    row.save(update_fields=["data", "last_used_at"])
    return row


def credential_key(credential: dict[str, Any]) -> str:
    """Return the lookup key of a passkey, independent of its user."""
    return hashlib.sha256(websafe_decode(credential["rawId"])).hexdigest()


def _passkeys_of(user: User) -> list[tuple[Authenticator, AttestedCredentialData]]:
    rows = Authenticator.objects.filter(user=user, type=Authenticator.Type.WEBAUTHN).select_related("user")
    return [(row, _data(row)) for row in rows.order_by("pk")]


def _by_id(credential_id: bytes) -> list[tuple[Authenticator, AttestedCredentialData]]:
    key = hashlib.sha256(credential_id).hexdigest()
    rows = Authenticator.objects.filter(type=Authenticator.Type.WEBAUTHN, data__key=key)
    return [(row, _data(row)) for row in rows.select_related("user")]


def _data(row: Authenticator) -> AttestedCredentialData:
    response = RegistrationResponse.from_dict(row.data["credential"])
    data = response.response.attestation_object.auth_data.credential_data
    assert data is not None, "it was checked when it was added"
    return data


def _fake_credential(name: str) -> PublicKeyCredentialDescriptor:
    digest = salted_hmac("portal.people.accounts.mfa.passkeys", name, algorithm="sha256").digest()
    return PublicKeyCredentialDescriptor(type=PublicKeyCredentialType.PUBLIC_KEY, id=digest)


def _server(request: HttpRequest) -> Fido2Server:
    rp_id, origin = _relying_party(request)
    rp = PublicKeyCredentialRpEntity(id=rp_id, name="Berth")
    return Fido2Server(rp, verify_origin=lambda candidate: candidate == origin)


def _relying_party(request: HttpRequest) -> tuple[str, str]:
    """Return RP id and origin: of the public URL, or of localhost if the request uses it."""
    host = request.get_host()
    if host.partition(":")[0] == "localhost":
        return "localhost", f"{request.scheme}://{host}"
    return settings.BERTH_PUBLIC_HOST, settings.BERTH_PUBLIC_ORIGIN


def _parse(answer: str) -> dict[str, Any]:
    try:
        parsed = parse_json(answer) if len(answer) <= MAX_ANSWER else None
    except InvalidJson:
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidInput(Reason(MfaCode.PASSKEY_REFUSED))
    return parsed


def _store_state(request: HttpRequest, purpose: ChallengePurpose, state: dict[str, Any]) -> None:
    request.session[STATE] = {"purpose": purpose.value, "at": time.time(), "state": state}


def _take_state(request: HttpRequest, purpose: ChallengePurpose) -> dict[str, Any]:
    stored = request.session.pop(STATE, None)
    good = (
        isinstance(stored, dict) and stored["purpose"] == purpose and time.time() - stored["at"] < LIFETIME_S
    )
    if not good:
        raise InvalidInput(Reason(MfaCode.PASSKEY_LATE))
    state: dict[str, Any] = stored["state"]
    return state


def _require_top_level(response: RegistrationResponse | AuthenticationResponse) -> None:
    if response.response.client_data.cross_origin:
        raise InvalidInput(Reason(MfaCode.PASSKEY_REFUSED))
