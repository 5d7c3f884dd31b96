"""ASGI entry: the gateway's hot path goes past Django, everything else into it."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()

from portal.workspaces.asgi import gateway_application  # noqa: E402  (needs the app registry)

application = gateway_application(django_application)
