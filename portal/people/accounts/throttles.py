"""Rate limit of REST and SCIM requests, per user or, for anonymous requests, per address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from portal.common import rate_limits, request_context
from portal.people.accounts import limits
from portal.people.accounts.models import User

if TYPE_CHECKING:
    from rest_framework.views import APIView


class RequestThrottle(BaseThrottle):
    """Counts a request after authentication."""

    def __init__(self) -> None:
        self._wait_s = 0

    def allow_request(self, request: Request, view: APIView) -> bool:
        self._wait_s = count_request(request.user)
        return not self._wait_s

    def wait(self) -> float:
        return self._wait_s


def count_request(user: object) -> int:
    """Count a request of `user`, possibly anonymous. Returns the seconds to wait, or 0."""
    if isinstance(user, User) and user.is_authenticated:
        return rate_limits.count_request(user.pk, "")
    return rate_limits.count_request(None, limits.network_of(request_context.current().address))
