"""WSGI entry point of the web processes: pages, REST and agents' reports; streams are in `portal.asgi`."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

import django

django.setup()

from portal.common.serving import SyncHandler  # noqa: E402  (needs the settings)

application = SyncHandler()
