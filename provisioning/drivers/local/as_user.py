"""Switch to another user in a mount namespace with the files that its program needs. Standard library only.

Folders of this installation, and their parents, may be inaccessible to other users. So this process gets its
own mount namespace, with copies of the needed mounts in a small tmpfs over the folder `at`, which exists on
every machine. Nothing outside sees it.

Run as `python -I -S as_user.py` with a plan as JSON on standard input: `user`, with `uid`, `at` and `mounts`
(see `attach.py`; each `target` is below `at`), and `argv`, which is executed. The launcher imports it.
"""

# ruff: noqa: PTH100, PTH120, S606 - pathlib would double the time that this takes to start

from __future__ import annotations

import ctypes
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attach  # type: ignore[import-not-found,unused-ignore]  # noqa: E402 - its neighbour

MS_NOSUID, MS_NODEV, MS_REC = 0x2, 0x4, 0x4000


def become(user: dict[str, Any]) -> None:
    """Apply the mounts to this process and its children, and switch to the user. Raises `OSError`."""
    mounts = user["mounts"]
    trees = [attach.copy_of(mount) for mount in mounts]
    libc = attach.libc
    attach.check(libc.unshare(attach.CLONE_NEWNS), "unshare mnt")
    flags = ctypes.c_ulong(attach.MS_SLAVE | MS_REC)
    attach.check(libc.mount(b"none", b"/", None, flags, None), "mount /")
    flags, where = ctypes.c_ulong(MS_NOSUID | MS_NODEV), user["at"]
    attach.check(libc.mount(b"berth", where.encode(), b"tmpfs", flags, b"mode=0755,size=64k"), where)
    umask = os.umask(0o022)
    for tree, mount in zip(trees, mounts, strict=True):
        attach.attach(tree, mount)
    os.umask(umask)
    attach.become(user["uid"])


def main() -> None:
    plan = json.loads(sys.stdin.buffer.read())
    become(plan["user"])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.execve(plan["argv"][0], plan["argv"], {})


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyError, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
