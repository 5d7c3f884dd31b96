"""Client of the portal's HTTPS endpoint for machines, trusted by one authority under one name."""

from __future__ import annotations

import email.utils
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from provisioning.host.membership import JoinAnswer
from provisioning.service.console import Problem

SERVER_NAME = "portal.berth.internal"
CONNECT_S, ANSWER_S = 10.0, 45.0
MAX_ANSWER_BYTES = 256 * 1024
CLOCK_MAX_OFF_S = 60.0
MAX_WORDS = 400
RETRY_HINT = "Then run the same command again. Nothing was changed."


class Unreachable(Problem):
    """No answer arrived, and the portal did nothing."""


class ResponseLost(Problem):
    """The request was sent, but no answer arrived: it may or may not have been executed."""


class RequestRefused(Problem):
    """The portal rejected the request; `code` is the reason."""

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message, fix)
        self.code = code


@dataclass(frozen=True, slots=True)
class NodeProof:
    """PEM files that authenticate a node."""

    certificate: Path
    key: Path


def fetch_authority(url: str) -> tuple[str, float]:
    """Return the endpoint's certificate, not yet trusted, and how far its clock is ahead of ours in seconds.

    0 if the endpoint does not send its time. Raises `Problem`.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    # Trusted only after comparison with the token's digest.
    context.verify_mode = ssl.CERT_NONE
    asked_at = time.time()
    answer = _request(url, context, "GET", "/nodes/v1/authority")
    if answer.status_code != 200 or not answer.content.startswith(ssl.PEM_HEADER.encode()):
        raise _not_a_portal(url)
    return answer.text, _ahead_s(answer.headers, (asked_at + time.time()) / 2)


class NodeWorkspaces(msgspec.Struct, frozen=True):
    """Workspaces on the node: their number, and the names of the first, `team/user/name`."""

    placed: int
    workspaces: tuple[str, ...] = ()


class Door:
    """Sends requests to the portal; `authority` is PEM text. `proof` authenticates as the node."""

    def __init__(self, url: str, authority: str, proof: NodeProof | None = None) -> None:
        self._url = url
        self._context = ssl.create_default_context(cadata=authority)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        if proof is not None:
            self._context.load_cert_chain(proof.certificate, proof.key)

    def join(self, body: Mapping[str, Any]) -> JoinAnswer:
        """Join the portal. Raises `Problem`, including `Unreachable`, `ResponseLost` and `RequestRefused`."""
        return self._answer("/nodes/v1/join", body)

    def rotate(self, body: Mapping[str, Any]) -> JoinAnswer:
        """Request new keys and a new certificate for this node. Raises like `join`."""
        return self._answer("/nodes/v1/rotate", body)

    def leave(self, *, workspaces: str = "") -> NodeWorkspaces | None:
        """Leave the portal; return None when done, otherwise the workspaces that still have to end or move.

        `workspaces` is `drain` or `stop`; empty rejects the request while there are workspaces on the node.
        Raises like `join`.
        """
        body = {"workspaces": workspaces} if workspaces else {}
        answer = _request(self._url, self._context, "POST", "/nodes/v1/leave", body)
        if answer.status_code == 204:
            return None
        if answer.status_code != 202:
            raise refusal(self._url, answer)
        return _workspaces_of(answer)

    def workspaces(self) -> NodeWorkspaces:
        """Return the workspaces that the portal has on this node.

        Raises like `join`: `RequestRefused` if it is not a member.
        """
        answer = _request(self._url, self._context, "POST", "/nodes/v1/standing", {})
        if answer.status_code != 200:
            raise refusal(self._url, answer)
        return _workspaces_of(answer)

    def _answer(self, path: str, body: Mapping[str, Any]) -> JoinAnswer:
        answer = _request(self._url, self._context, "POST", path, body)
        if not answer.is_success:
            raise refusal(self._url, answer)
        try:
            return msgspec.json.decode(answer.content, type=JoinAnswer)
        except msgspec.MsgspecError as error:
            raise ResponseLost(
                f"The portal's answer cannot be read ({error}).", "See the log of its web processes."
            ) from error


def _workspaces_of(answer: httpx.Response) -> NodeWorkspaces:
    try:
        decoded = msgspec.json.decode(answer.content, type=NodeWorkspaces)
    except msgspec.MsgspecError as error:
        raise ResponseLost(
            f"The portal's answer cannot be read ({error}).", "See the log of its web processes."
        ) from error
    return NodeWorkspaces(decoded.placed, tuple(_printable_line(name) for name in decoded.workspaces))


def _request(
    url: str, context: ssl.SSLContext, method: str, path: str, body: Mapping[str, Any] | None = None
) -> httpx.Response:
    limits = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    # Web proxies do not apply between machines.
    with httpx.Client(verify=context, timeout=limits, trust_env=False) as client:
        extensions = {"sni_hostname": SERVER_NAME, "timeout": limits.as_dict()}
        request = client.build_request(method, url + path, json=body, extensions=extensions)
        try:
            answer = client.send(request, stream=True)
            content = b""
            for part in answer.iter_bytes():
                content += part
                if len(content) > MAX_ANSWER_BYTES:
                    raise _not_a_portal(url)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _unreachable(url, error) from error
        except httpx.TransportError as error:
            if body is None:
                raise _unreachable(url, error) from error
            raise ResponseLost(
                f"The answer of {url} was lost ({_error_text(error)}).", "Run the same command again."
            ) from error
    # The content is already decoded.
    headers = [(key, value) for key, value in answer.headers.items() if not key.startswith("content-")]
    return httpx.Response(answer.status_code, headers=headers, content=content, request=request)


def refusal(url: str, answer: httpx.Response) -> Problem:
    """Return the portal's refusal as a `Problem`. Other answers are not from a portal."""
    try:
        document = answer.json()
        code, detail = str(document["code"]), str(document["detail"])
    except (ValueError, KeyError, TypeError):
        if answer.status_code >= 500:
            return Unreachable(
                f"The portal does not answer now (status {answer.status_code}).",
                "Check that Berth runs there (`make status`), then run the command again.",
            )
        return _not_a_portal(url)
    if code == "not_found":
        return _not_a_portal(url)
    return RequestRefused(
        code, _printable_line(detail), _printable_line(str(document.get("next_action") or ""))
    )


def _printable_line(text: str) -> str:
    """Return text of the peer for a terminal: printable, on one line, truncated."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:MAX_WORDS]


def _not_a_portal(url: str) -> Problem:
    return Problem(
        f"{url} answers, but machines cannot join there.",
        "Copy the address with its port from the pool's page.",
    )


def _error_text(error: BaseException) -> str:
    return _printable_line(str(error)) or type(error).__name__


def _unreachable(url: str, error: Exception) -> Problem:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        if cause.verify_code in {9, 10}:
            return Unreachable(
                f"The portal's certificate is {'not valid yet' if cause.verify_code == 9 else 'expired'} "
                "by this machine's clock.",
                f"Set the clock (timedatectl set-ntp true). {RETRY_HINT}",
            )
        return Unreachable(
            f"{url} is not the portal of this token: its certificate is from another authority "
            f"({_printable_line(cause.verify_message)}). Nothing was sent.",
            "Copy the whole command from the pool's page. If that fails, check for interception.",
        )
    if isinstance(cause, ssl.SSLError):
        return Unreachable(
            f"{url} does not speak the TLS of the portal's port for machines ({_error_text(cause)}).",
            "Copy the address with its port from the pool's page.",
        )
    return Unreachable(
        f"{url} does not answer ({_error_text(error)}).",
        "Check that the portal runs with BERTH_NODES_ADDRESS, and that this port and the next are open "
        f"from here. {RETRY_HINT}",
    )


def _ahead_s(headers: httpx.Headers, now: float) -> float:
    """Return how far the server's clock is ahead of `now`, from its Date header, in whole seconds."""
    try:
        server_time = email.utils.parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (ValueError, TypeError):
        return 0.0
    return server_time - now


def check_clock(ahead_s: float) -> None:
    """Raise `Problem` if the portal's clock and ours differ too much."""
    if abs(ahead_s) > CLOCK_MAX_OFF_S:
        raise clock_problem(f"{abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead of'}")


def clock_problem(far: str) -> Problem:
    return Problem(
        f"This machine's clock is {far} the portal's.",
        f"Set it (timedatectl set-ntp true, or chrony). {RETRY_HINT}",
    )
