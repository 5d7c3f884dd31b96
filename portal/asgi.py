"""ASGI entry: the gateway's hot path goes past Django, everything else into it."""

from __future__ import annotations

import os
import warnings

# WhiteNoise answers with files, which Django reads in a thread under ASGI, as it should.
warnings.filterwarnings("ignore", message="StreamingHttpResponse must consume synchronous iterators")

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from django.core.asgi import get_asgi_application  # noqa: E402  (needs the variable)

django_application = get_asgi_application()

from portal.workspaces.gateway.asgi import gateway_application  # noqa: E402  (needs the app registry)

application = gateway_application(django_application)
