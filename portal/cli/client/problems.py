"""Error responses: problem documents (RFC 9457) as exceptions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import httpx

from portal.cli.config import JOB_TOKEN
from portal.cli.errors import CliError, Missing, NotSignedIn, RequestRejected, Unreachable


def error_of(base_url: str, response: httpx.Response) -> CliError:
    """Return the error described by a response of the portal at `base_url`."""
    problem: Any = None
    if response.headers.get("Content-Type", "").startswith("application/problem+json"):
        with contextlib.suppress(ValueError):
            problem = response.json()
    if not isinstance(problem, dict):
        return not_a_portal_error(base_url, response)
    message = _sentence(problem)
    next_action = str(problem.get("next_action", ""))
    if response.status_code == 401:
        return NotSignedIn(message, next_action or _sign_in(base_url, response))
    if response.status_code == 404:
        return Missing(message, next_action)
    return RequestRejected(
        message,
        next_action,
        status=response.status_code,
        code=str(problem.get("code", "")),
        request_id=str(problem.get("request_id", "")),
        ask=problem.get("ask"),
    )


def _sign_in(base_url: str, response: httpx.Response) -> str:
    if response.request.headers.get("Authorization", "").startswith(f"Bearer {JOB_TOKEN}"):
        return f"Run `berth login {base_url} --ci` in the job."
    return f"Run `berth login {base_url}` with a new token."


def not_a_portal_error(base_url: str, response: httpx.Response) -> Unreachable:
    """Return the error for a response that is not from a portal."""
    if response.status_code in (502, 503, 504):
        return Unreachable(
            f"The portal at {base_url} does not answer ({response.status_code}).",
            "Wait until it has started, or check `make status` on its machine.",
        )
    return Unreachable(
        f"{base_url} answered {response.status_code}, but not as a Berth portal.",
        "Check the address.",
    )


def _sentence(problem: Mapping[str, Any]) -> str:
    """Return the problem's message, followed by its field messages."""
    parts = [str(problem.get("detail") or problem.get("title") or "The portal denied the request.")]
    errors = problem.get("errors")
    if isinstance(errors, dict):
        for name, sentences in errors.items():
            for sentence in sentences if isinstance(sentences, list) else [sentences]:
                if str(sentence) not in (problem.get("next_action"), problem.get("detail")):
                    parts.append(f"{name}: {sentence}" if name else str(sentence))
    return " ".join(parts)
