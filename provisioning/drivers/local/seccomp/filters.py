"""The seccomp filter of this machine, and its file for sandboxes."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from provisioning.drivers.local.seccomp.bpf import compile_rules
from provisioning.drivers.local.seccomp.profile import MACHINES, rules
from provisioning.drivers.local.state import write_atomically

FOLDER = ".seccomp"


class FilterUnavailable(Exception):
    """No filter is available for this machine; the text is the reason, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled filter and its SHA-256."""

    program: bytes
    digest: str


@lru_cache(maxsize=1)
def machine_filter() -> Filter:
    """Return the filter for this machine, compiled once per process. Raises `FilterUnavailable`."""
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise FilterUnavailable(
            f"this machine is {platform.machine()}, and filters exist only for {' and '.join(MACHINES)}"
        )
    try:
        program = compile_rules(rules(machine, os.uname().release))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FilterUnavailable(
            f"the list of system calls is damaged ({error}); install Berth again"
        ) from error
    return Filter(program, hashlib.sha256(program).hexdigest())


def file_of(base: Path, digest: str) -> Path:
    """Return the file of the filter with this digest, written if missing or damaged. Raises `OSError`.

    `base` is the driver's folder, which is hidden from sandboxes.
    """
    own_filter = machine_filter()
    if own_filter.digest != digest:
        raise ValueError("digest of another machine's filter")
    path = base / FOLDER / f"{digest}.bpf"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    if content != own_filter.program:
        write_atomically(path, own_filter.program)
    return path
