"""System calls allowed in workspaces: the default profile of container engines.

The list is moby's (`vendor/`), evaluated for a process without capabilities. Berth adds `ALSO_ALLOWED` and
blocks 32-bit conventions, which could bypass some of its rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from errno import ENOSYS
from pathlib import Path
from typing import Any

from provisioning.drivers.local.seccomp.bpf import ALLOW, ERRNO, Compare, Comparison, FilterRules, Rule

VENDOR = Path(__file__).resolve().with_name("vendor")
PROFILE = VENDOR / "moby" / "default.json"

# The kernel checks pidfd_getfd(2) like ptrace(2), which is allowed; PyTorch uses it to share GPU memory
# between processes.
ALSO_ALLOWED = ("pidfd_getfd",)
# The kernel reads only the lower 32 bits of these arguments. Comparing all 64, like libseccomp, would let
# values pass that the kernel reads differently.
HALVES = {("clone", 0), ("personality", 0), ("socket", 0)}
HALF = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture: its AUDIT_ARCH_… number, its name in the profile and its file of call numbers."""

    audit: int
    name: str
    numbers: str


MACHINES = {
    "x86_64": Architecture(0xC000003E, "amd64", "zsysnum_linux_amd64.go"),
    "aarch64": Architecture(0xC00000B7, "arm64", "zsysnum_linux_arm64.go"),
}


def numbers(machine: Architecture) -> dict[str, int]:
    """Return call numbers by name for an architecture. Raises `OSError`, `ValueError`."""
    text = (VENDOR / "golang" / machine.numbers).read_text()
    by_name = {
        name.lower(): int(number) for name, number in re.findall(r"^\tSYS_(\w+) *= (\d+)$", text, re.M)
    }
    if "read" not in by_name:
        raise ValueError(f"{machine.numbers} has no system call numbers")
    return by_name


def rules(machine: Architecture, release: str) -> FilterRules:
    """Return the rules for a machine with this kernel release, such as 6.1.0-18-amd64.

    Raises `OSError` if a list cannot be read and `ValueError` if it has unsupported content.
    """
    profile = json.loads(PROFILE.read_text())
    by_name = numbers(machine)
    calls: dict[int, list[Rule]] = {by_name[name]: [Rule(ALLOW)] for name in ALSO_ALLOWED}
    newest = 0
    for entry in profile["syscalls"]:
        newest = max([newest, *(by_name[name] for name in entry["names"] if name in by_name)])
        if not _applies(entry, machine, version(release)):
            continue
        for name in entry["names"]:
            if name in by_name:  # calls of other architectures are listed too
                calls.setdefault(by_name[name], []).append(_rule(name, entry))
    return FilterRules(
        architecture=machine.audit,
        calls={number: _effective_rules(call_rules) for number, call_rules in calls.items()},
        default=_action(profile["defaultAction"], profile.get("defaultErrnoRet")),
        newest=newest,
        unknown=ERRNO + ENOSYS,
    )


def version(release: str) -> tuple[int, int]:
    """Return the major and minor version of a kernel release. Raises `ValueError`."""
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None:
        raise ValueError(f"“{release}” is not a kernel version")
    return int(match[1]), int(match[2])


def _applies(entry: Mapping[str, Any], machine: Architecture, kernel: tuple[int, int]) -> bool:
    """Return whether an entry applies to this machine and a process without capabilities."""
    includes, excludes = entry.get("includes") or {}, entry.get("excludes") or {}
    unknown_keys = (set(includes) | set(excludes)) - {"arches", "caps", "minKernel"}
    if unknown_keys:
        raise ValueError(f"the profile has unsupported conditions: {sorted(unknown_keys)}")
    if includes.get("caps") or ("arches" in includes and machine.name not in includes["arches"]):
        return False
    if "minKernel" in includes and kernel < version(includes["minKernel"]):
        return False
    if "minKernel" in excludes and kernel >= version(excludes["minKernel"]):
        return False
    return machine.name not in excludes.get("arches", ())


def _rule(name: str, entry: Mapping[str, Any]) -> Rule:
    arguments = entry.get("args") or []
    if len({argument["index"] for argument in arguments}) != len(arguments):
        raise ValueError(f"the profile compares an argument of {name} twice in one rule")
    return Rule(
        _action(entry["action"], entry.get("errnoRet")),
        tuple(_comparison(name, argument) for argument in arguments),
    )


def _comparison(name: str, argument: Mapping[str, Any]) -> Comparison:
    index, compare, value = argument["index"], Compare(argument["op"]), argument["value"]
    second_value = argument.get("valueTwo", 0)
    if (name, index) not in HALVES or not 0 <= value <= HALF or not 0 <= second_value <= HALF:
        raise ValueError(f"the profile has an unsupported comparison of argument {index} of {name}")
    if compare is Compare.MASKED_EQ:
        return Comparison(index, compare, second_value, mask=value)
    return Comparison(index, compare, value)


def _action(name: str, errno: int | None) -> int:
    if name == "SCMP_ACT_ALLOW":
        return ALLOW
    if name == "SCMP_ACT_ERRNO" and errno:
        return ERRNO + errno
    raise ValueError(f"the profile has an unsupported action: {name}")


def _effective_rules(call_rules: list[Rule]) -> tuple[Rule, ...]:
    """Return the rules that take effect: as in libseccomp, a rule without comparisons decides alone."""
    plain = {rule for rule in call_rules if not rule.comparisons}
    if len(plain) > 1:
        raise ValueError("the profile both allows and denies a call")
    return tuple(plain or call_rules)
