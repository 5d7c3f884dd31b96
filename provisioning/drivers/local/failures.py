"""Errors of the local driver, and what the operating system's errors mean to an operator."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioning.errors import BackendUnavailable, Blame, MissingDependency, ProvisioningError, StartFailed


class IsolationRequired(MissingDependency):
    """Several users share this machine and nothing would keep their workspaces apart."""

    code = "isolation_required"


class LimitsRequired(MissingDependency):
    """Several users share this machine and one workspace could take all of it."""

    code = "limits_required"


class HomesUnlimited(MissingDependency):
    """Several users share this machine and nothing says how much of its disk each of them may take."""

    code = "homes_unlimited"


class StillStopping(StartFailed):
    """An earlier generation of this workspace has not ended yet."""

    code = "still_stopping"


class WrongNode(StartFailed):
    """The placement names another node than this one."""

    code = "wrong_node"
    retryable = False


class HomeNowhere(ProvisioningError):
    """A home that nothing has been started in yet: there are no files to show."""

    code = "home_nowhere"
    retryable = False
    blame = Blame.USER


class HomeProtected(ProvisioningError):
    """A home is a link or a mount of somebody's making: what is in there is not the driver's to delete."""

    code = "home_protected"
    retryable = False
    blame = Blame.OPERATOR


class HomeChangesHands(StartFailed):
    """A home is being given to its user of the machine, which takes several calls where it is large."""

    code = "home_changes_hands"


class HomeInUse(StartFailed):
    """A home cannot change hands, as a workspace that uses it still runs as another user."""

    code = "home_in_use"


class EnvironmentMissing(ProvisioningError):
    """The node does not hold the software environment of the workspace."""

    code = "environment_missing"
    blame = Blame.OPERATOR


class Busy(BackendUnavailable):
    """Another worker holds this workspace's lock."""

    code = "busy"
    blame = Blame.BACKEND


NO_ROOM = {errno.EAGAIN: "process", errno.ENOMEM: "process in its memory"}
"""Why a process could not be started that is none of a folder's doing."""


def is_full(error: OSError) -> bool:
    """Whether a disk had no room, or its user no more of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def suppressed_when_full() -> Iterator[None]:
    """For what can be done without: nothing is raised where a disk has no room for it."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise


@contextmanager
def disk_errors(path: Path, *, starting: bool = False) -> Iterator[None]:
    """Turn `OSError` under `path` into `StartFailed` or `BackendUnavailable` with its fix."""
    try:
        yield
    except OSError as error:
        kind = StartFailed if starting else BackendUnavailable
        if is_full(error):
            message = f"The disk that holds {path} is full. Free space there and try again."
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            kind = BackendUnavailable
            message = f"{path} cannot be written. Give the user that runs the node worker write access to it."
        elif error.errno in NO_ROOM:
            message = (
                f"This machine has no room for another {NO_ROOM[error.errno]}. "
                "It is tried again by itself; if it stays so, tell an operator."
            )
        else:
            message = f"{path} cannot be used ({error.strerror or error}). Check that folder and try again."
        raise kind(message, detail=repr(error)) from error
