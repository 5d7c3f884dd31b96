"""Mount a workspace's files into a running sandbox. Standard library only.

Run as `python -I -S attach.py` with a plan as JSON on standard input: `pid` and `start_ticks` of a process of
the sandbox, `hostname`, and `mounts`. Each mount has `source` (a path here), `target` (a path inside),
`folder`, `readonly` and `devices` (allow device nodes). An id-mapped mount also has `owners`, the user ids on
disk and inside. Mounts are copied here, where the paths exist, and moved into the sandbox's mount namespace
after this process has entered it. This needs privileges only over a user namespace created by the same user.
If this user may not copy mounts, unlike root, it does so in its own user namespace. With `uid` in the plan,
root switches to that user, the owner of the sandbox, before it enters.

All of this happens before anything of the workspace runs in the sandbox, so nothing can interfere. The
options are those of bubblewrap's binds: nosuid, nodev unless requested, and no propagation from the sandbox
to this machine. Exit code 0, or 1 with the reason on standard error; the sandbox must then be ended.
"""

# ruff: noqa: PTH103, PTH123 - pathlib would double the time that this program takes to start

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is slow to import
    from typing import Any

# Identical on all architectures since Linux 5.2 and 5.12.
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_IDMAP = 0x1, 0x2, 0x4, 0x100000
MS_SLAVE = 1 << 19
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x00020000, 0x04000000, 0x10000000
NS_GET_USERNS = 0xB701

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def check(result: int, action: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")
    return result


def copy_of(mount: dict[str, Any]) -> int:
    """Return a descriptor of a detached copy of the mounts at `source`. Raises `OSError`."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if mount["folder"] else 0)
    source = mount["source"].encode()
    tree = check(libc.syscall(SYS_OPEN_TREE, AT_FDCWD, source, flags), f"open_tree {mount['source']}")
    attribute_flags = ATTR_NOSUID
    attribute_flags |= 0 if mount["devices"] else ATTR_NODEV
    attribute_flags |= ATTR_RDONLY if mount["readonly"] else 0
    attributes = MountAttributes(attr_set=attribute_flags, propagation=MS_SLAVE)
    if mount.get("owners"):
        attributes.attr_set |= ATTR_IDMAP
        attributes.userns_fd = namespace_of(*mount["owners"])
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if mount["folder"] else 0)
    size = ctypes.sizeof(attributes)
    result = libc.syscall(SYS_MOUNT_SETATTR, tree, b"", flags, ctypes.byref(attributes), size)
    if mount.get("owners"):
        os.close(attributes.userns_fd)
    check(result, f"mount_setattr {mount['source']}")
    return tree


def namespace_of(stored: int, mapped: int) -> int:
    """Return a descriptor of a user namespace that maps user and group `stored` to `mapped`. Root only."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        if libc.unshare(CLONE_NEWUSER) == 0:
            os.write(write_end, b"x")
            signal.pause()
        os._exit(1)
    os.close(write_end)
    try:
        if os.read(read_end, 1) != b"x":
            raise PermissionError(errno.EPERM, "could not create a user namespace")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{name}", "w", encoding="ascii") as handle:
                handle.write(f"{stored} {mapped} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(read_end)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def become(uid: int) -> None:
    """Switch permanently from root to this user and its group."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def copies_of(mounts: list[dict[str, Any]]) -> list[int]:
    """Call `copy_of` for each source; if not permitted, in a child with its own user namespace."""
    try:
        return [copy_of(mount) for mount in mounts]
    except PermissionError:
        pass
    import socket  # 7 ms that root can save

    parent_end, child_end = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
            socket.send_fds(child_end, [b"x"], [copy_of(mount) for mount in mounts])
            code = 0
        except OSError as error:
            print(error, file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)
    child_end.close()
    _, trees, _, _ = socket.recv_fds(parent_end, 1, len(mounts))
    os.waitpid(pid, 0)
    if len(trees) != len(mounts):
        raise PermissionError(errno.EPERM, "could not copy mounts")
    return trees


def enter(pid: int, start_ticks: int, uid: int | None) -> None:
    """Enter the sandbox's user, mount and UTS namespaces, with all capabilities over them."""
    namespaces = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("mnt", "uts")]
    with open(f"/proc/{pid}/stat", errors="replace") as handle:
        text = handle.read()
    if int(text[text.rfind(")") + 2 :].split()[19]) != start_ticks:
        raise ProcessLookupError(errno.ESRCH, "the sandbox has ended")
    owner = fcntl.ioctl(namespaces[0], NS_GET_USERNS)
    if uid is not None:
        become(uid)
    check(libc.setns(owner, CLONE_NEWUSER), "setns user")
    check(libc.setns(namespaces[0], CLONE_NEWNS), "setns mnt")
    check(libc.setns(namespaces[1], CLONE_NEWUTS), "setns uts")


def attach(tree: int, mount: dict[str, Any]) -> None:
    target = mount["target"]
    if mount["folder"]:
        os.makedirs(target, mode=0o755, exist_ok=True)
    elif not os.path.lexists(target):
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    result = libc.syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(), MOVE_MOUNT_F_EMPTY_PATH)
    check(result, f"move_mount {target}")
    os.close(tree)


def main() -> int:
    plan = json.loads(sys.stdin.buffer.read())
    try:
        os.umask(0o022)
        trees = copies_of(plan["mounts"])
        enter(plan["pid"], plan["start_ticks"], plan.get("uid"))
        for tree, mount in zip(trees, plan["mounts"], strict=True):
            attach(tree, mount)
        name = plan["hostname"].encode()
        check(libc.sethostname(name, len(name)), "sethostname")
    except (OSError, KeyError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
