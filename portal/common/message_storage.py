"""Where a message waits for the next page: in a cookie as Django's, which no workspace can write."""

from __future__ import annotations

from django.conf import settings
from django.contrib.messages.storage.cookie import CookieStorage
from django.contrib.messages.storage.fallback import FallbackStorage
from django.contrib.messages.storage.session import SessionStorage


class PortalCookieStorage(CookieStorage):
    """`__Host-` over https: it belongs to the portal's host, and only an answer over TLS sets it."""

    cookie_name = "__Host-berth-messages" if settings.HTTPS else "berth-messages"


class MessageStorage(FallbackStorage):
    """The cookie, and the session for what is too long for it."""

    storage_classes = (PortalCookieStorage, SessionStorage)
