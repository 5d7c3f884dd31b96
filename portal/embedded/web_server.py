"""gunicorn's configuration for the web processes (`-c python:portal.embedded.web_server portal.wsgi`).

docs/adr/0016-processes.md explains the choice of gunicorn and threads, and the numbers.
"""

from __future__ import annotations

import os
from typing import Any

import gunicorn

from portal.common import loading
from portal.embedded import web_memory
from portal.embedded.proxy import SMALL_BODY_BYTES
from portal.scheduling import pauses

loading.begin()
bind = f"127.0.0.1:{os.environ.get('BERTH_WEB_PORT') or int(os.environ.get('BERTH_PORT') or 8000) + 1}"
workers = int(os.environ.get("BERTH_WEB_PROCESSES") or 2)
# Some requests wait, for example for a log that a node has to read, and must not block a process.
worker_class = "portal.embedded.web_worker.DeadlineWorker"
threads = int(os.environ.get("BERTH_WEB_THREADS") or 8)
# The front door keeps connections for 60 s and must close them first, because a request may be in transit.
keepalive = 120
timeout = 60
graceful_timeout = 3
# Load the code once, so that the processes share it.
preload_app = True
control_socket_disable = True
loglevel = "warning"
limit_request_line = 8190
limit_request_field_size = 32_768
# The front door and agents connect over loopback; `portal.common.front_door` decides which to trust.
forwarded_allow_ips = "127.0.0.1"
forwarder_headers = ""
secure_scheme_headers = {"X-FORWARDED-PROTO": "https"}
# Do not disclose server and version.
gunicorn.SERVER = "berth"


def when_ready(_server: Any) -> None:
    """Freeze all loaded objects, so that the garbage collector does not write to shared pages."""
    loading.end()


def post_request(_worker: Any, _request: Any, environ: Any, _response: Any) -> None:
    """Collect the garbage of decisions, previews and large bodies after the response was sent."""
    pauses.collect_if_due()
    length = environ.get("CONTENT_LENGTH") or ""
    if length.isdecimal() and int(length) > SMALL_BODY_BYTES:
        web_memory.release_soon()
