"""Completes a sign-in after authentication at a provider: a session or an error page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.crypto import constant_time_compare

from portal.common.errors import NotAllowed
from portal.common.htmx import local_path
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of
from portal.people.accounts import login_flow, sessions
from portal.people.accounts.models import User
from portal.people.identity import presenters, services
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import Provider
from portal.people.identity.decisions import decide

TEST = "test"
STATUS = {IdentityCode.PROVIDER_DOWN: 503, IdentityCode.PROVIDER_WRONG: 502, IdentityCode.SIGN_IN_ENDED: 400}


def state_data(request: HttpRequest, *, nonce: str = "", test: bool = False) -> dict[str, Any]:
    """Return the state stored while the user is at the provider. A test is bound to its administrator."""
    data: dict[str, Any] = {"nonce": nonce}
    if test:
        data[TEST] = str(request.user.pk)
    return data


def finish(
    request: HttpRequest,
    provider: Provider,
    claims: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    nonce: str | None = None,
) -> HttpResponse:
    """Return the response to a proven identity: a session, the next stage, a refusal, or a test result.

    With `nonce`, it must equal the nonce of the sign-in started here.
    """
    data = state.get("data") or {}
    if nonce is not None and not (
        data.get("nonce") and constant_time_compare(str(nonce), str(data["nonce"]))
    ):
        params = {"provider": provider.name, "detail": "it belongs to another sign-in"}
        return render_failure(request, provider, Reason(IdentityCode.PROVIDER_WRONG, params))
    if TEST in data:
        return _store_test_result(request, provider, claims, data)
    try:
        user, decision = services.sign_in(provider=provider, claims=claims)
    except NotAllowed as error:
        return render_failure(request, provider, error.reason, is_recorded=True)
    present = get_user(request)
    if isinstance(present, User):
        request.user = present
        sessions.sign_out(request, present)
    leave = sign_out_data(provider, claims)
    if leave:
        request.session[sessions.LEAVE] = leave
    next_url = local_path(str(state.get("next") or ""))
    second_factor = decision.person is not None and decision.person.mfa
    return login_flow.begin(
        request, user, provider=provider.id, next_url=next_url, second_factor=second_factor
    )


def sign_out_data(provider: Provider, claims: Mapping[str, Any]) -> dict[str, str]:
    """Return data for signing out at the provider, or an empty dict if that is not configured."""
    token = claims.get("_id_token")
    if not getattr(provider, "sign_out_everywhere", False) or not token:
        return {}
    return {"path": reverse("identity:left", args=[provider.id]), "id_token": str(token)}


def render_failure(
    request: HttpRequest, provider: Provider, reason: Reason, *, is_recorded: bool = False
) -> HttpResponse:
    """Render the page of a failed sign-in, and record it in the audit log unless `is_recorded`."""
    if not is_recorded:
        services.record_refusal(provider, reason)
    context = {
        "message": message_of(reason),
        "next_action": next_action_of(reason),
        "provider": provider,
        "request_id": getattr(request, "request_id", ""),
    }
    status = STATUS.get(reason.code, 403) if isinstance(reason.code, IdentityCode) else 403
    return render(request, "identity/failed.html", context, status=status)


def _store_test_result(
    request: HttpRequest, provider: Provider, claims: Mapping[str, Any], data: Mapping[str, Any]
) -> HttpResponse:
    """Store the result of a test for its administrator. Does not sign in."""
    user = get_user(request)
    if not isinstance(user, User) or not user.administers or str(user.pk) != data[TEST]:
        return render_failure(request, provider, Reason(IdentityCode.TEST_NOT_YOURS))
    services.record_test(actor=user, provider=provider)
    request.session["identity_test"] = {
        "provider": provider.id,
        "claims": {name: value for name, value in claims.items() if not name.startswith("_id_")},
    }
    return redirect("identity:tested", provider.id)


def test_result(request: HttpRequest, provider: Provider) -> dict[str, Any] | None:
    """Return the claims and outcome of the administrator's last test of the provider, or None."""
    stored = request.session.pop("identity_test", None)
    if not isinstance(stored, dict) or stored.get("provider") != provider.id:
        return None
    claims = stored["claims"]
    return {"claims": claims, "outcome": presenters.present_decision(decide(provider, claims))}
