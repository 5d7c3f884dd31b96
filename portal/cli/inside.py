"""Requests to the Jupyter inside a workspace, through the workspace's origin."""

from __future__ import annotations

import time
from typing import Any

import httpx

from portal.cli.errors import CliError, NotSignedIn, RequestRejected, Unreachable
from portal.cli.loopback import Connection

ROUTE_S = 30.0
"""Seconds to retry on 503: the front door learns of a ready workspace with a short delay."""


def require_running(workspace: dict[str, Any]) -> None:
    """Raise `CliError` unless the workspace is running."""
    if workspace["state"] != "running":
        raise CliError(
            f"{workspace['name']} is {workspace['state']}.", f"Run `berth start {workspace['id']} --wait`."
        )


def request(connection: Connection, method: str, path: str, name: str, **options: Any) -> httpx.Response:
    """Return Jupyter's response. Raises `NotSignedIn` if access is denied, and `Unreachable`."""
    ends_at = time.monotonic() + ROUTE_S
    while True:
        try:
            answer = connection.http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise Unreachable(f"{name} does not answer: {error}.", "Try again.") from error
        if answer.status_code != 503 or time.monotonic() > ends_at:
            break
        time.sleep(0.5)
    if _is_denied(answer) and _is_denied(_page(connection, name)):
        raise not_signed_in_error(name)
    return answer


def not_signed_in_error(name: str) -> NotSignedIn:
    return NotSignedIn(
        f"This token cannot access {name}.", "Use a token of its user with the scope workspaces:connect."
    )


def no_jupyter(name: str, capability: str, status: int, advice: str = "") -> RequestRejected:
    return RequestRejected(
        f"{name} has no Jupyter that {capability} (status {status}).",
        f"Choose a template with JupyterLab, such as jupyterlab or terminal.{advice}",
        status=status,
        code="no_jupyter",
    )


def _is_denied(answer: httpx.Response) -> bool:
    return answer.is_redirect or answer.status_code in (401, 403)


def _page(connection: Connection, name: str) -> httpx.Response:
    """Request the workspace's first page, to tell denied access from an app without this path."""
    try:
        return connection.http.get("/")
    except httpx.HTTPError as error:
        raise Unreachable(f"{name} does not answer: {error}.", "Try again.") from error
