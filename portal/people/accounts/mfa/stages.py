"""The stage of signing in that asks for the second factor."""

from __future__ import annotations

from allauth.account.internal.flows.login import get_authentication_records
from allauth.mfa.stages import AuthenticateStage
from allauth.mfa.webauthn.internal.flows import did_use_passwordless_login
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.crypto import constant_time_compare

from portal.people.accounts import devices
from portal.people.accounts.models import User

ELSEWHERE = "elsewhere"
"""The type of the record of a second factor that was shown to a sign-in provider, which may ask for it."""


class SecondFactor(AuthenticateStage):
    """Passed by who has no second factor, came by a passkey or by a provider that has asked for one, or is
    in a browser that is trusted for it.

    What has been proven so far waits in a session that belongs to nobody. It is worth nothing any more
    when the account's password or sessions have changed meanwhile, or the account was switched off.
    """

    def handle(self) -> tuple[HttpResponse | None, bool]:
        user = self.login.user
        if not self._is_asked(user):
            return None, True
        # Whoever knew the session's key before the password was given does not know it now.
        self.request.session.cycle_key()
        self.state["account"] = user.get_session_auth_hash()
        return redirect("accounts:second-factor"), True

    def _is_asked(self, user: User) -> bool:
        if user.mfa_since is None or did_use_passwordless_login(self.request, user):
            return False
        if any(record.get("type") == ELSEWHERE for record in get_authentication_records(self.request, user)):
            return False
        return not devices.is_trusted(self.request, user)

    def still_holds(self) -> bool:
        """Whether the account is as it was when its password was given."""
        user = self.login.user
        if user is None or not user.is_active:
            return False
        return constant_time_compare(self.state.get("account", ""), user.get_session_auth_hash())
