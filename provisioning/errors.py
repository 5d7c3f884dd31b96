"""Errors that cross the boundary between a driver and the control plane.

Each error says who has to act (`blame`), whether trying again can help (`retryable`), a public
message that ends in one next action, and a detail that only the log shows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Blame(StrEnum):
    """Whose turn it is to act."""

    USER = "user"
    OPERATOR = "operator"
    BACKEND = "backend"


class ProvisioningError(Exception):
    """Base of every error that a driver may raise.

    `code` is stable and machine-readable; `message` is shown to the user and names one next
    action; `detail` goes to the log only.
    """

    code: ClassVar[str] = "backend_error"
    retryable: ClassVar[bool] = True
    blame: ClassVar[Blame] = Blame.BACKEND

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class InvalidSpec(ProvisioningError):
    """The request can never run on this pool as it stands."""

    code = "invalid_spec"
    retryable = False
    blame = Blame.USER


class Conflict(ProvisioningError):
    """The external name exists with another specification."""

    code = "conflict"
    retryable = False
    blame = Blame.OPERATOR


class Stale(ProvisioningError):
    """The command belongs to a generation that has been closed, or its lease has run out."""

    code = "stale"
    retryable = False
    blame = Blame.BACKEND


class NoCapacity(ProvisioningError):
    """The backend has no room, whatever the snapshot said."""

    code = "no_capacity"
    retryable = True
    blame = Blame.BACKEND


class Unclean(NoCapacity):
    """The memory of `devices` could not be proven clean; nothing of it is given out."""

    code = "unclean"

    def __init__(self, message: str, *, devices: tuple[str, ...] = (), detail: str = "") -> None:
        super().__init__(message, detail=detail)
        self.devices = devices


class BackendUnavailable(ProvisioningError):
    """The backend does not answer. Nothing may be concluded about what runs there."""

    code = "backend_unavailable"
    retryable = True
    blame = Blame.OPERATOR


class GpuBeingReset(ProvisioningError):
    """A GPU of the node is being reset: for that long, nobody may ask the driver for any of its GPUs."""

    code = "gpu_being_reset"
    retryable = True
    blame = Blame.BACKEND


class StartFailed(ProvisioningError):
    """The backend refused or failed to start the environment; nothing is left behind."""

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
