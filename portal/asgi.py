"""ASGI entry point of the gateway process: forward-auth, workspaces' own hosts, and event streams.

Separate processes (`portal.wsgi`) serve pages, REST and agents' reports.
"""

from __future__ import annotations

import os

# Not a default: a value in the environment is for the other processes.
os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings.gateway"

from portal.common import loading

loading.begin()

from django.core.asgi import get_asgi_application  # noqa: E402  (imports most of Django)

django_application = get_asgi_application()

from portal import gateway_wiring  # noqa: E402
from portal.reclaim import bar  # noqa: E402
from portal.workspaces.gateway.asgi import gateway_application  # noqa: E402  (needs the app registry)

gateway_wiring.connect()
application = gateway_application(django_application, describe=bar.describe, extend=bar.extend)
loading.end()
