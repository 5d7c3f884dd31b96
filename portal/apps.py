from __future__ import annotations

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """The portal as a whole: connects the apps once all of them are loaded."""

    name = "portal"
    label = "portal"

    def ready(self) -> None:
        from portal import wiring  # every model must be loaded first

        wiring.connect()
