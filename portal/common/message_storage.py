"""Cookie storage of flash messages, protected from workspaces."""

from __future__ import annotations

from django.conf import settings
from django.contrib.messages.storage.cookie import CookieStorage
from django.contrib.messages.storage.fallback import FallbackStorage
from django.contrib.messages.storage.session import SessionStorage


class PortalCookieStorage(CookieStorage):
    """Uses the `__Host-` prefix over https: bound to the portal's host and only set over TLS."""

    cookie_name = "__Host-berth-messages" if settings.HTTPS else "berth-messages"


class MessageStorage(FallbackStorage):
    """Cookie storage with the session as fallback for long messages."""

    storage_classes = (PortalCookieStorage, SessionStorage)
