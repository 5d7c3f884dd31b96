from __future__ import annotations

from django.apps import AppConfig


class EmbeddedConfig(AppConfig):
    name = "portal.embedded"
    label = "embedded"
    verbose_name = "Embedded mode"
