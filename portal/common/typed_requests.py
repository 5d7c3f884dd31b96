"""Types of HTTP requests. In views behind a login, the user is a `User` and never anonymous."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpRequest

if TYPE_CHECKING:
    from django.contrib.auth.models import _User as User
    from django_htmx.middleware import HtmxDetails


class SignedInRequest(HttpRequest):
    """A request of a signed-in user, with attributes set by middleware. For annotations only."""

    user: User
    htmx: HtmxDetails
