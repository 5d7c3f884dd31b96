"""Login stage of the second factor."""

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
"""Record type of a second factor checked by a sign-in provider."""


class SecondFactor(AuthenticateStage):
    """Asks for the second factor.

    Skipped for users without one, after a passkey or a provider that checked one, and in trusted browsers.
    The proof so far waits in an anonymous session. It becomes invalid if the account's password or sessions
    change or the account is deactivated.
    """

    def handle(self) -> tuple[HttpResponse | None, bool]:
        user = self.login.user
        if not self._is_asked(user):
            return None, True
        # Prevents session fixation.
        self.request.session.cycle_key()
        self.state["account"] = user.get_session_auth_hash()
        return redirect("accounts:second-factor"), True

    def _is_asked(self, user: User) -> bool:
        if user.mfa_since is None or did_use_passwordless_login(self.request, user):
            return False
        if any(record.get("type") == ELSEWHERE for record in get_authentication_records(self.request, user)):
            return False
        return not devices.is_trusted(self.request, user)

    def is_current(self) -> bool:
        """Return whether the account is unchanged since its password was given."""
        user = self.login.user
        if user is None or not user.is_active:
            return False
        return constant_time_compare(self.state.get("account", ""), user.get_session_auth_hash())
