"""Kernel project quotas (ext4, XFS) through system calls; no program is needed.

New files in a project's folder with `PROJINHERIT` belong to the same project. The file system counts and
limits a project's use for all writers. See quotactl_fd(2) of Linux 5.14, and ioctl_xfs_fsgetxattr(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from dataclasses import dataclass

PROJECTS = 2
_SYS_QUOTACTL_FD = 443
"""Identical on all architectures."""
_GET, _SET = 0x800007, 0x800008
_GET_STATE = (ord("X") << 8) + 8
_STATE_VERSION = 1
_ENFORCED = 1 << 5
"""`FS_QUOTA_PDQ_ENFD`; without it projects are counted but not limited."""
_LIMITS = 1 | 4
UNIT = 1024
"""Limits on bytes are multiples of this."""
_USE = struct.Struct("=8QI4x")
"""`struct if_dqblk`: hard, soft, used bytes; hard, soft, used inodes; two times; mask of valid fields."""
_STATE_SIZE = 160
_GET_FLAGS, _SET_FLAGS = 0x801C581F, 0x401C5820
_FLAGS = struct.Struct("=5I8x")
"""`struct fsxattr`: flags, extent size, extents, project, size of copied extents."""
_INHERIT = 0x200

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class ProjectUse:
    """Use and limits of a project; a limit of 0 means none."""

    limit_bytes: int
    used_bytes: int
    limit_files: int
    used_files: int


def is_enforced(folder: int) -> bool:
    """Return whether the file system enforces projects, and this process can set their limits."""
    state = ctypes.create_string_buffer(bytes([_STATE_VERSION]), _STATE_SIZE)
    try:
        _quotactl(folder, _GET_STATE, 0, state)
        use_of(folder, 0)
    except OSError:
        return False
    flags: int = struct.unpack_from("=H", state, 2)[0]
    return bool(flags & _ENFORCED)


def use_of(folder: int, project: int) -> ProjectUse:
    """Return the use of a project on the folder's file system. Raises `OSError`."""
    buffer = ctypes.create_string_buffer(_USE.size)
    try:
        _quotactl(folder, _GET, project, buffer)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return ProjectUse(0, 0, 0, 0)  # XFS has no entry for an unused project
    hard, _, used, files, _, used_files, *_ = _USE.unpack(buffer)
    return ProjectUse(hard * UNIT, used, files, used_files)


def limit(folder: int, project: int, *, limit_bytes: int, limit_files: int) -> None:
    """Set the limits of a project; 0 means none. Raises `OSError`."""
    packed = _USE.pack(limit_bytes // UNIT, 0, 0, limit_files, 0, 0, 0, 0, _LIMITS)
    _quotactl(folder, _SET, project, ctypes.create_string_buffer(packed, _USE.size))


def project_of(file: int) -> int:
    """Return the project of an open file or folder, 0 if none. Raises `OSError`."""
    project: int = _FLAGS.unpack(fcntl.ioctl(file, _GET_FLAGS, bytes(_FLAGS.size)))[3]
    return project


def assign(file: int, project: int, *, folder: bool) -> bool:
    """Assign an open file or folder to a project; return whether that changed it. Raises `OSError`."""
    flags, extent, extents, before, copied = _FLAGS.unpack(fcntl.ioctl(file, _GET_FLAGS, bytes(_FLAGS.size)))
    new_flags = flags | _INHERIT if folder else flags
    if (before, flags) == (project, new_flags):
        return False
    fcntl.ioctl(file, _SET_FLAGS, _FLAGS.pack(new_flags, extent, extents, project, copied))
    return True


def _quotactl(folder: int, command: int, project: int, argument: ctypes.Array[ctypes.c_char]) -> None:
    if _libc.syscall(_SYS_QUOTACTL_FD, folder, ctypes.c_uint((command << 8) | PROJECTS), project, argument):
        number = ctypes.get_errno()
        raise OSError(number, f"quotactl_fd: {os.strerror(number)}")
