"""Executes a service that ends with the supervisor.

Run as `python -I -S launcher.py PARENT_PID SIGNAL SCORE CONFINEMENT PROGRAM ARG…`, which takes about 10
milliseconds. A hook between fork and exec would avoid the second exec, but is unsafe in a process with
threads. SCORE is its `oom_score_adj` (`oom.py`), or `-` to keep the parent's. CONFINEMENT is the plan of
`confinement.py`: the service sees a part of the file system and has no privileges; `-` runs it like its
parent.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import stat
import sys
from typing import Any

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 8, 24, 38, 47
PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
HIGHEST_CAPABILITY = 63
CAPABILITY_VERSION_3 = 0x20080522
CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_SLAVE, MS_RELATIME = 4096, 16384, 1 << 19, 1 << 21
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
_KEPT_FLAGS = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
_COVER_FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC
_NOFOLLOW = os.O_CLOEXEC | os.O_NOFOLLOW
_ESCAPED = re.compile(r"\\([0-7]{3})")
libc = ctypes.CDLL(None, use_errno=True)


def main(argv: list[str]) -> None:
    parent, signal_number = int(argv[0]), int(argv[1])
    libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)  # The supervisor died before prctl.
    if argv[2] != "-":
        try:
            # If written by root, it is also the minimum that its descendants may set.
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as handle:  # noqa: PTH123
                handle.write(argv[2])
        except OSError:
            pass  # optional: the service also works with its parent's score
    if argv[3] != "-":
        try:
            confine(json.loads(argv[3]))
        except OSError as error:
            sys.exit(f"could not confine {argv[4]}: {error}")
        # Changing the user resets the parent-death signal.
        libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(0)
    try:
        os.execvp(argv[4], argv[4:])  # noqa: S606  (its purpose)
    except OSError as error:
        sys.exit(f"could not start {argv[4]}: {error.strerror}")


def confine(plan: dict[str, Any]) -> None:
    """Set up the file-system view and drop privileges. Raises `OSError`."""
    folder, mask = os.getcwd(), os.umask(0o022)  # noqa: PTH109
    _unmount_below(plan["covers"], [*(path for path, _ in plan["binds"]), *plan["copies"]])
    _build_view(plan)
    os.chdir(folder)
    os.umask(mask)
    _drop_privileges(plan["uid"], plan["groups"], plan["capabilities"])


def _unmount_below(covers: list[str], kept_paths: list[str]) -> None:
    """Enter a new mount namespace and unmount foreign mounts below `covers`, to never keep them busy."""
    _call("unshare", libc.unshare(CLONE_NEWNS))
    # Unmounts outside propagate into this namespace; mounts here do not propagate outside.
    _mount(None, "/", MS_REC | MS_SLAVE)
    for place in reversed(_mount_points()):
        if any(_is_below(place, cover) for cover in covers) and not any(
            path == place or _is_below(path, place) for path in kept_paths
        ):
            libc.umount2(os.fsencode(place), MNT_DETACH | UMOUNT_NOFOLLOW)


def _build_view(plan: dict[str, Any]) -> None:
    """Cover folders and bind the wanted paths into them, from outer to inner."""
    uid = plan["uid"]
    opened = {path: os.open(path, os.O_PATH | _NOFOLLOW) for path, _ in plan["binds"]}
    contents = {path: _texts(path) for path in plan["copies"]}
    steps = [(path, 0, False) for path in plan["covers"]]
    steps += [(path, 1, writable) for path, writable in plan["binds"]]
    for path, bound, writable in sorted(steps):
        if bound:
            _bind(opened[path], path, writable=writable)
        else:
            os.makedirs(path, exist_ok=True)  # noqa: PTH103
            _mount("tmpfs", path, _COVER_FLAGS, "tmpfs", "mode=0755,size=8m")
    for place, target in plan["links"]:
        if not os.path.lexists(place):
            os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
            os.symlink(target, place)  # noqa: PTH211
    for texts in contents.values():
        for path, text in texts.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            copy = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, 0o400)
            os.write(copy, text)
            os.fchown(copy, uid, uid)
            os.close(copy)
    for path in plan["covers"]:
        _mount(None, path, MS_REMOUNT | MS_BIND | MS_RDONLY | _COVER_FLAGS)
    for descriptor in opened.values():
        os.close(descriptor)


def _texts(path: str) -> dict[str, bytes]:
    """Return the contents of a file, or of a folder's files, by path; skips links and missing files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _NOFOLLOW)
    except OSError:
        return {}
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            texts: dict[str, bytes] = {}
            for name in os.listdir(descriptor):  # noqa: PTH208
                texts |= _texts(f"{path}/{name}")
            return texts
        return {path: os.read(descriptor, 1 << 20)} if stat.S_ISREG(mode) else {}
    finally:
        os.close(descriptor)


def _bind(descriptor: int, place: str, *, writable: bool) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), place)
    if stat.S_ISDIR(mode):
        os.makedirs(place, exist_ok=True)  # noqa: PTH103
    elif not os.path.lexists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | _NOFOLLOW, 0o444))
    _mount(f"/proc/self/fd/{descriptor}", place, MS_BIND | MS_REC)
    current = os.statvfs(place).f_flag
    # Existing flags may be locked.
    flags = current & _KEPT_FLAGS | (MS_RELATIME if current & os.ST_RELATIME else 0)
    added = MS_NOSUID | MS_NODEV | (0 if writable else MS_RDONLY)
    _mount(None, place, MS_REMOUNT | MS_BIND | flags | added)


def _drop_privileges(uid: int, groups: list[int], capabilities: list[int]) -> None:
    """Switch to the user and groups; drop capabilities not in `capabilities`, and ways to gain more."""
    _call("no_new_privs", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    for capability in range(HIGHEST_CAPABILITY + 1):
        if capability not in capabilities:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.prctl(PR_SET_KEEPCAPS, bool(capabilities), 0, 0, 0)
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    head = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    mask = sum(1 << capability for capability in capabilities)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    _call("capset", libc.capset(head, (ctypes.c_uint32 * 6)(low, low, low, high, high, high)))
    for capability in capabilities:
        _call("ambient", libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0))


def _mount_points() -> list[str]:
    """Return mount points in the order of mounting."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123
        return [_ESCAPED.sub(lambda match: chr(int(match[1], 8)), line.split()[4]) for line in lines]


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _mount(
    source: str | None, place: str, flags: int, kind: str | None = None, data: str | None = None
) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, place, kind, data)]
    _call(f"mount {place}", libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))


def _call(name: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


if __name__ == "__main__":
    main(sys.argv[1:])
