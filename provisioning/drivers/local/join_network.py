"""Apply network rules to a sandbox and start its egress. Standard library only.

Run as `python -I -S join_network.py` with a plan as JSON on standard input: `pid` and `start_ticks` of a
process of the sandbox, `nft` (a program), `rules` (its input), `pasta_argv` (pasta's argument vector) and
`program` (its executable). Rules are loaded before egress starts. Exit code 0 once egress works, otherwise
nonzero with the reason on standard error. With `uid` in the plan, root switches to that user, the owner of
the sandbox, once it has found the sandbox.

This program enters the user namespace that owns the sandbox's network, so it needs no root. The sandbox's
processes are in another user namespace, so they cannot change the rules.
"""

# ruff: noqa: PTH123, S606 - pathlib would double the time that this program takes to start

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NS_GET_USERNS = 0xB701

libc = ctypes.CDLL(None, use_errno=True)


def setns(descriptor: int, kind: int, name: str) -> None:
    if libc.setns(descriptor, kind) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns {name}: {os.strerror(number)}")


def load_rules(network: int, owner: int, nft: str, rules: str) -> None:
    """Load the rules in the sandbox's network through a child. Raises `OSError`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            setns(owner, CLONE_NEWUSER, "user")
            setns(network, CLONE_NEWNET, "net")
            os.dup2(reading, 0)
            os.close(writing)
            os.execv(nft, [nft, "-f", "-"])
        except OSError as error:
            print(error, file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    os.close(reading)
    # Bytes, since this user may be unable to read Python's files, including those of encodings.
    with open(writing, "wb") as pipe:
        pipe.write(rules.encode())
    _, status = os.waitpid(child, 0)
    if status:
        raise OSError("nftables rejected the rules")


def main() -> None:
    plan = json.loads(sys.stdin.buffer.read())
    network = os.open(f"/proc/{plan['pid']}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    with open(f"/proc/{plan['pid']}/stat", errors="replace") as handle:
        text = handle.read()
    if int(text[text.rfind(")") + 2 :].split()[19]) != plan["start_ticks"]:
        raise ProcessLookupError("the sandbox has ended")
    owner = fcntl.ioctl(network, NS_GET_USERNS)
    if plan["uid"] is not None:
        os.chdir("/")
        os.setgroups([])
        os.setresgid(plan["uid"], plan["uid"], plan["uid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    load_rules(network, owner, plan["nft"], plan["rules"])
    if not plan["pasta_argv"]:
        return
    setns(owner, CLONE_NEWUSER, "user")
    os.set_inheritable(network, True)
    # Python ignores SIGPIPE, which is inherited on exec; pasta does not start that way.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    argv = [*plan["pasta_argv"], "--netns-only", "--netns", f"/proc/self/fd/{network}"]
    os.execv(plan["program"], argv)


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyError, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)
