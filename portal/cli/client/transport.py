"""Requests to the REST API: authentication, retries, pagination, event streams, and errors.

Independent of resources.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from portal.cli.client.problems import error_of, not_a_portal_error
from portal.cli.errors import RequestRejected, Unreachable
from portal.cli.loopback import Connection, LoopbackTransport

API = "/api/v1"
# The portal sends keep-alive comments every 10 seconds. After three missed ones, the connection is dead.
STREAM_SILENCE_S = 35.0
JsonObject = dict[str, Any]
JsonList = list[dict[str, Any]]


class Transport:
    """Sends requests to the portal at `base_url` with `token`. Paths are relative to the API's root.

    Every method raises `NotSignedIn`, `Missing`, `RequestRejected` or `Unreachable`.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._transport = transport
        self._http = httpx.Client(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            timeout=timeout_s,
            follow_redirects=False,
            transport=LoopbackTransport(transport),
        )

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> JsonObject:
        return self._object("GET", path, params=params)

    def get_text(self, path: str) -> str:
        """Return the response as plain text."""
        return self._request("GET", path, headers={"Accept": "text/plain"}).text

    def get_array(self, path: str) -> JsonList:
        """Return the rows of a response that has no pages."""
        response = self._request("GET", path)
        body = _json_of(response)
        if not isinstance(body, list):
            raise not_a_portal_error(self.base_url, response)
        return body

    def list(self, path: str, filters: Mapping[str, Any] | None = None) -> Iterator[JsonObject]:
        """Yield the rows of all pages. Drops filters without a value."""
        page = self.get(path, drop_empty(filters or {}))
        while True:
            yield from page["results"]
            if not page["next"]:
                return
            # Behind a proxy, the portal's own URL in the link may differ from ours.
            query = urlsplit(page["next"]).query
            page = self.get(f"{path}?{query}")

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> JsonObject:
        return self._object("POST", path, json=body)

    def post_once(
        self, path: str, body: Mapping[str, Any], *, idempotency_key: str = "", retries: int = 1
    ) -> JsonObject:
        """POST with an idempotency key, by default a new one. Repeats the request if no response arrives.

        The portal executes requests with the same key once.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        for _ in range(retries):
            with contextlib.suppress(Unreachable):
                return self._object("POST", path, json=body, headers=headers)
        return self._object("POST", path, json=body, headers=headers)

    def post_without_answer(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """POST without an object in the response."""
        self._request("POST", path, json=body)

    def put(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        return self._object("PUT", path, json=body)

    def patch(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        return self._object("PATCH", path, json=body)

    def delete(self, path: str, params: Mapping[str, Any] | None = None) -> None:
        self._request("DELETE", path, params=params)

    def stream(
        self,
        path: str,
        *,
        after: int = 0,
        until: float | None = None,
        params: Mapping[str, Any] | None = None,
        keep_alives: bool = False,
    ) -> Iterator[JsonObject]:
        """Yield messages of an event stream after message `after`; with `keep_alives` also empty ones.

        Ends when the portal ends the stream, or some seconds after `until` on the monotonic clock.
        """
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = httpx.Timeout(self._timeout_s, read=STREAM_SILENCE_S)
        options: dict[str, Any] = {"headers": headers, "params": params, "timeout": timeout}
        with self._errors(), self._http.stream("GET", API + path, **options) as response:
            if response.status_code >= 400:
                response.read()
            self._check(response)
            for line in response.iter_lines():
                if until is not None and time.monotonic() > until:
                    return
                if line.startswith("data: "):
                    yield json.loads(line[6:])
                elif keep_alives and line.startswith(":"):
                    yield {}

    @contextlib.contextmanager
    def transfer(self, method: str, url: str, **options: Any) -> Iterator[httpx.Response]:
        """Send a request to a single-use URL, without the token: the URL is the credential."""
        transport = LoopbackTransport(self._transport)
        with (
            self._errors(),
            httpx.Client(transport=transport, timeout=httpx.Timeout(self._timeout_s, read=600)) as http,
            http.stream(method, url, **options) as response,
        ):
            if response.status_code >= 400:
                response.read()
                message = response.text.strip()[:300] or f"The portal answered {response.status_code}."
                raise RequestRejected(message, status=response.status_code, code="transfer_refused")
            yield response

    def connect(self, url: str) -> Connection:
        """Connect to the origin of a workspace."""
        return Connection(url, self._token, timeout_s=self._timeout_s, transport=self._transport)

    def close(self) -> None:
        self._http.close()

    def _object(self, method: str, path: str, **options: Any) -> JsonObject:
        response = self._request(method, path, **options)
        body = _json_of(response)
        if not isinstance(body, dict):
            raise not_a_portal_error(self.base_url, response)
        return body

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self._errors():
            response = self._http.request(method, API + path, **options)
        self._check(response)
        return response

    def _check(self, response: httpx.Response) -> None:
        """Raise the error that the response describes, if any."""
        if not response.is_success:
            raise error_of(self.base_url, response)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn httpx's errors into `Unreachable`."""
        try:
            yield
        except httpx.ConnectError as error:
            if _is_certificate(error):
                raise Unreachable(
                    f"The certificate of {self.base_url} is not trusted: {error}.",
                    "Set SSL_CERT_FILE to the file of your certificate authority.",
                ) from error
            raise Unreachable(
                f"{self.base_url} does not answer: {error}.",
                "Check the address and that Berth runs there.",
            ) from error
        except httpx.TimeoutException as error:
            raise Unreachable(
                f"{self.base_url} did not answer in time.", "Try again. If it persists, contact an operator."
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(
                f"The connection to {self.base_url} failed: {error or type(error).__name__}.",
                "Check the address, then try again.",
            ) from error


def path_of(*segments: object) -> str:
    """Return the path of these segments, each quoted, so that an id cannot lead to another resource."""
    return "".join(f"/{quote(str(segment), safe='')}" for segment in segments)


def drop_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping without empty values."""
    return {key: value for key, value in values.items() if value}


def _json_of(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _is_certificate(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return "CERTIFICATE_VERIFY_FAILED" in str(error)
