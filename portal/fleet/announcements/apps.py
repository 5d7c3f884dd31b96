from __future__ import annotations

from django.apps import AppConfig


class AnnouncementsConfig(AppConfig):
    name = "portal.fleet.announcements"
