"""Types of HTTP requests: in views behind a login the user is a `User`, never anonymous."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpRequest

if TYPE_CHECKING:
    from django.contrib.auth.models import _User as User
    from django_htmx.middleware import HtmxDetails


class SignedInRequest(HttpRequest):
    """A request of a signed-in user, with what the middlewares add. Never made, only named."""

    user: User
    htmx: HtmxDetails
