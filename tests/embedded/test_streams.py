"""Event streams have their own process, and only streams are routed to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.http import HttpRequest, StreamingHttpResponse
from django.test import RequestFactory
from django.urls import URLPattern, URLResolver, path

from portal import stream_urls, urls
from portal.common.serving import SyncHandler
from portal.embedded import proxy
from provisioning.service.environ import ROOT

ID = "8d1f6a3e-0b52-4c7a-9a35-0d6c6a9f6f10"
_VALUES = {"uuid": ID, "int": "7"}


def paths(patterns: list[URLPattern | URLResolver], before: str = "/") -> Iterator[str]:
    """An example of every path below `patterns`."""
    for pattern in patterns:
        route = re.sub(r"<(?:(\w+):)?\w+>", lambda found: _VALUES.get(found[1], "name"), str(pattern.pattern))
        if isinstance(pattern, URLResolver):
            yield from paths(pattern.url_patterns, before + route)
        else:
            yield before + route


def is_stream(path: str, accept: str = "*/*") -> bool:
    """Whether the front door sends a request to the gateway process."""
    return any(re.search(pattern, path) and media_type in accept for pattern, media_type in proxy.STREAMS)


def test_every_stream_is_routed_to_the_stream_process() -> None:
    served = {one for one in paths(stream_urls.urlpatterns) if one != "/healthz/live"}
    assert len(served) >= 8
    for one in served:
        assert is_stream(one, "text/event-stream"), one


def test_only_streams_are_routed_to_the_stream_process() -> None:
    served = set(paths(stream_urls.urlpatterns))
    everything = set(paths(urls.urlpatterns))
    assert len(everything) > 150
    assert served <= everything
    for one in everything - served:
        assert not is_stream(one, "text/event-stream"), one


def test_event_list_is_routed_there_only_as_a_stream() -> None:
    assert not is_stream(f"/api/v1/workspaces/{ID}/events", "application/json")
    assert is_stream(f"/api/v1/workspaces/{ID}/events", "text/event-stream, */*")


async def _endless() -> object:
    while True:
        yield b"still here"


def endless(_request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(_endless())


class Urls:
    urlpatterns = [path("endless/", endless)]


def test_web_process_refuses_endless_responses(settings: pytest.FixtureRequest) -> None:
    settings.ROOT_URLCONF = Urls  # type: ignore[attr-defined]
    settings.MIDDLEWARE = []  # type: ignore[attr-defined]
    handler = SyncHandler()
    response = handler.get_response(RequestFactory().get("/endless/"))
    assert response.status_code == 421
    assert response["Content-Type"] == "application/problem+json"


def test_stream_process_loads_its_urls_with_its_own_settings() -> None:
    """It has fewer apps than the portal, and importing another app would break every stream.

    Only `portal.gateway_wiring` connects its ports.
    """
    code = (
        "import django; django.setup(); import portal.asgi, portal.stream_urls;"
        "from portal.workspaces.extension_policy import extension_policy; extension_policy();"
        "from portal import celery; from portal.fleet.machines.keys import directory;"
        "assert celery._directories == [directory]"
    )
    environ = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings.gateway",
        "BERTH_GATEWAY_SECRET": "x" * 32,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
