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


class HomeMissing(ProvisioningError):
    """The home does not exist yet, so there are no files to show."""

    code = "home_nowhere"
    retryable = False
    blame = Blame.USER


class HomeProtected(ProvisioningError):
    """The home is a link or mount set up by an administrator, so the driver does not delete it."""

    code = "home_protected"
    retryable = False
    blame = Blame.OPERATOR


class HomeOwnerChanging(StartFailed):
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


NO_ROOM = {errno.EAGAIN: "process limit", errno.ENOMEM: "memory limit"}
"""Limit that prevented the start of a process, for reasons unrelated to files."""


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
            message = f"The disk of {path} is full. Free disk space there, then try again."
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            kind = BackendUnavailable
            message = f"{path} is not writable. Grant write access to the user that runs the node worker."
        elif error.errno in NO_ROOM:
            message = (
                f"This machine has reached its {NO_ROOM[error.errno]}. "
                "The portal retries automatically; ask an operator if the problem persists."
            )
        else:
            message = f"{path} is not usable ({error.strerror or error}). Check that folder, then try again."
        raise kind(message, detail=repr(error)) from error
