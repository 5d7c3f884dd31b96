from __future__ import annotations

from django.apps import AppConfig


class ChannelsConfig(AppConfig):
    name = "portal.notify.channels"
