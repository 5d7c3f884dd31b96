from __future__ import annotations

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """The portal as a whole: once every room is there, they are wired together."""

    name = "portal"
    label = "portal"

    def ready(self) -> None:
        from portal import wiring  # every model has to be loaded first

        wiring.connect()
