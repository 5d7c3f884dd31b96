"""django-allauth's account adapter. Every login ends in `portal.people.accounts.sessions.sign_in`.

All authentication methods (password, link, passkey, single sign-on) pass a `Login` to allauth's
`perform_login`, which runs the remaining stages and then calls this adapter.
"""

from __future__ import annotations

from typing import Any

from allauth.account import signals
from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.flows.login import clear_authentication_records, get_authentication_records
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.common import request_context
from portal.common.htmx import local_path
from portal.people.accounts import devices, sessions
from portal.people.accounts.mfa.stages import ELSEWHERE
from portal.people.accounts.models import User


class LoginAdapter(DefaultAccountAdapter):
    """allauth's account adapter. Accounts are created by invitation; `sessions` manages sessions."""

    def login(self, request: HttpRequest, user: User) -> None:
        """Start the session after all stages have passed."""
        proofs = [_name_of(record) for record in get_authentication_records(request, user)]
        sessions.sign_in(request, user, how=" and ".join(dict.fromkeys(proofs)) or "unknown")
        clear_authentication_records(request)

    def logout(self, request: HttpRequest) -> None:
        if isinstance(request.user, User):
            sessions.sign_out(request, request.user)

    def post_login(
        self,
        request: HttpRequest,
        user: User,
        *,
        redirect_url: str | None,
        signal_kwargs: dict[str, Any] | None,
        **_known: Any,
    ) -> HttpResponse:
        """Redirect to `redirect_url` if it is a path of the portal."""
        response = redirect(local_path(redirect_url or ""))
        devices.remember_browser(request, response, user)
        signals.user_logged_in.send(
            sender=User, request=request, response=response, user=user, **(signal_kwargs or {})
        )
        return response

    def respond_user_inactive(self, request: HttpRequest, user: User) -> HttpResponse:
        """Handle a valid sign-in to a deactivated account."""
        sessions.sign_in_failed(username=user.username, locked_out=False)
        messages.error(request, _("This account is deactivated. Ask an administrator."))
        return redirect("accounts:sign-in")

    def get_login_stages(self) -> list[str]:
        """Return the stages between authentication and session."""
        return ["portal.people.accounts.mfa.stages.SecondFactor"]

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def is_safe_url(self, url: str | None) -> bool:
        return bool(url) and local_path(url or "", "") == url

    def get_client_ip(self, request: HttpRequest) -> str:
        return request_context.current().address

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Do nothing. Users are notified by `portal.common.events` and `portal.people.accounts.mails`."""

    def add_message(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing. Views show their own messages."""


_FACTORS = {
    ELSEWHERE: "second factor at the provider",
    "totp": "authenticator app",
    "recovery_codes": "recovery code",
    "webauthn": "passkey",
}


def _name_of(record: dict[str, Any]) -> str:
    """Return the name of an authentication method in the audit log."""
    if record["method"] == "socialaccount":
        return str(record["provider"])
    method = str(record["method"])
    return _FACTORS.get(record.get("type", ""), method) if method == "mfa" else method
