"""Errors passed from a driver to the control plane.

Each error has `blame` (who has to act), `retryable` (whether a retry can help), a public message that ends
with one next action, and a detail that is only logged.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Blame(StrEnum):
    """Who has to act."""

    USER = "user"
    OPERATOR = "operator"
    BACKEND = "backend"


class ProvisioningError(Exception):
    """Base of every error that a driver may raise.

    `code` is stable and machine-readable; `message` is shown to the user and names one next action; `detail`
    is only logged.
    """

    code: ClassVar[str] = "backend_error"
    retryable: ClassVar[bool] = True
    blame: ClassVar[Blame] = Blame.BACKEND

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class InvalidSpec(ProvisioningError):
    """This pool can never run the request as it is."""

    code = "invalid_spec"
    retryable = False
    blame = Blame.USER


class Conflict(ProvisioningError):
    """The external name exists with another specification."""

    code = "conflict"
    retryable = False
    blame = Blame.OPERATOR


class StaleCommand(ProvisioningError):
    """The command belongs to a closed generation, or its lease has expired."""

    code = "stale"
    retryable = False
    blame = Blame.BACKEND


class NoCapacity(ProvisioningError):
    """The backend has no free capacity, despite the snapshot."""

    code = "no_capacity"
    retryable = True
    blame = Blame.BACKEND


class UncleanDevices(NoCapacity):
    """The memory of `devices` could not be verified clean; they are not allocated."""

    code = "unclean"

    def __init__(self, message: str, *, devices: tuple[str, ...] = (), detail: str = "") -> None:
        super().__init__(message, detail=detail)
        self.devices = devices


class BackendUnavailable(ProvisioningError):
    """The backend does not answer. The state of its workspaces is unknown."""

    code = "backend_unavailable"
    retryable = True
    blame = Blame.OPERATOR


class GpuBeingReset(ProvisioningError):
    """A GPU of the node is being reset: during that time its GPU driver must not be queried."""

    code = "gpu_being_reset"
    retryable = True
    blame = Blame.BACKEND


class StartFailed(ProvisioningError):
    """The backend failed to start the workspace; nothing is left behind."""

    code = "start_failed"
    retryable = True
    blame = Blame.BACKEND


class MissingDependency(ProvisioningError):
    """A program or module that this driver needs is not installed on the host."""

    code = "missing_dependency"
    retryable = False
    blame = Blame.OPERATOR


class UnknownDriver(ProvisioningError):
    """No driver is registered under this name."""

    code = "unknown_driver"
    retryable = False
    blame = Blame.OPERATOR
