"""Errors of the local driver, and the operating system's errors explained for operators."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioning.errors import BackendUnavailable, Blame, MissingDependency, ProvisioningError, StartFailed


class IsolationRequired(MissingDependency):
    """Several users share this machine and nothing would isolate their workspaces."""

    code = "isolation_required"


class LimitsRequired(MissingDependency):
    """Several users share this machine and one workspace could use all of its resources."""

    code = "limits_required"


class HomesUnlimited(MissingDependency):
    """Several users share this machine without a limit on the disk space of homes."""

    code = "homes_unlimited"


class StillStopping(StartFailed):
    """An earlier generation of this workspace has not ended yet."""

    code = "still_stopping"


class WrongNode(StartFailed):
    """The placement names another node."""

    code = "wrong_node"
    retryable = False


class HomeNowhere(ProvisioningError):
    """The home does not exist yet, so there are no files to show."""

    code = "home_nowhere"
    retryable = False
    blame = Blame.USER


class HomeProtected(ProvisioningError):
    """The home is a link or mount set up by an administrator, so the driver does not delete it."""

    code = "home_protected"
    retryable = False
    blame = Blame.OPERATOR


class HomeChangesHands(StartFailed):
    """The home is changing its owner, which takes several calls if it is large."""

    code = "home_changes_hands"


class HomeInUse(StartFailed):
    """The home cannot change its owner while a workspace uses it as another user."""

    code = "home_in_use"


class EnvironmentMissing(ProvisioningError):
    """The node does not have the workspace's software environment."""

    code = "environment_missing"
    blame = Blame.OPERATOR


class Busy(BackendUnavailable):
    """Another worker holds this workspace's lock."""

    code = "busy"
    blame = Blame.BACKEND


NO_ROOM = {errno.EAGAIN: "process", errno.ENOMEM: "process in its memory"}
"""Why a process could not be started, for reasons unrelated to files."""


def is_full(error: OSError) -> bool:
    """Return whether the disk is full or a quota is exceeded."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def suppressed_when_full() -> Iterator[None]:
    """Suppress errors of a full disk, for optional writes."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise


@contextmanager
def disk_errors(path: Path, *, starting: bool = False) -> Iterator[None]:
    """Turn `OSError` under `path` into `StartFailed` or `BackendUnavailable` with a fix."""
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
