"""Requires users with certain roles to set up a second factor before anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django_htmx.http import HttpResponseClientRedirect

from portal.common.errors import PortalError
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.mfa.codes import MfaCode
from portal.people.accounts.models import User

V = TypeVar("V", bound=Callable[..., Any])


class SecondFactorRequired(PortalError):
    """The account needs a second factor."""

    code = ProblemCode.MFA_REQUIRED
    status = 403
    title = "Set up a second factor first"


def open_before_setup(view: V) -> V:
    """Mark a page as reachable before the second factor is set up."""
    view.open_before_setup = True  # type: ignore[attr-defined]
    return view


def require_set_up(user: Any) -> None:
    """Raise `SecondFactorRequired` for a user who has to set up a second factor."""
    if isinstance(user, User) and user.must_set_up_mfa:
        raise SecondFactorRequired(Reason(MfaCode.SET_UP_FIRST))


class RequiredFactorMiddleware:
    """Redirects users who must set up a second factor from private pages to the setup page.

    Pages that the setup needs stay reachable. Public pages show nothing private. REST calls `require_set_up`
    when it authenticates a session.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Any, _kwargs: Any
    ) -> HttpResponseBase | None:
        if not getattr(view, "login_required", True) or getattr(view, "open_before_setup", False):
            return None
        if not isinstance(request.user, User) or not request.user.must_set_up_mfa:
            return None
        target = reverse("accounts:two-step")
        htmx: Any = getattr(request, "htmx", None)
        if not htmx:
            return redirect(target)
        if str(htmx.current_url_abs_path or "").startswith(target):
            # A partial of the setup page itself is left empty.
            return HttpResponse(status=204)
        return HttpResponseClientRedirect(target)
