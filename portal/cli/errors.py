"""Errors of commands, with their exit codes."""

from __future__ import annotations

from typing import Any

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_NOT_SIGNED_IN = 3
EXIT_UNREACHABLE = 4
EXIT_NOT_FOUND = 5
EXIT_TIMEOUT = 6
EXIT_NEEDS_APPROVAL = 7
EXIT_INTERRUPTED = 130
NEEDS_APPROVAL = "needs_approval"
"""Code of the problem document, and outcome of a preview."""


class CliError(Exception):
    """An error message, one next action, and the exit code."""

    exit_code = EXIT_REFUSED

    def __init__(self, message: str, next_action: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_action = next_action


class RequestRejected(CliError):
    """The portal rejected the request. `status`, `code` and `ask` are those of its problem document.

    `ask` is the quota request that would allow the request, as a body for `client.quota_requests.create`, or
    `None`.
    """

    def __init__(
        self,
        message: str,
        next_action: str = "",
        *,
        status: int,
        code: str,
        request_id: str = "",
        ask: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message, next_action)
        self.status = status
        self.code = code
        self.request_id = request_id
        self.ask = ask
        if code == NEEDS_APPROVAL:
            # An approval may take days, so scripts need to recognize this case.
            self.exit_code = EXIT_NEEDS_APPROVAL


class NotSignedIn(CliError):
    exit_code = EXIT_NOT_SIGNED_IN


class Unreachable(CliError):
    """No response, or one that is not from a portal."""

    exit_code = EXIT_UNREACHABLE


class Missing(CliError):
    exit_code = EXIT_NOT_FOUND


class TimedOut(CliError):
    exit_code = EXIT_TIMEOUT


class UsageError(CliError):
    exit_code = EXIT_USAGE
