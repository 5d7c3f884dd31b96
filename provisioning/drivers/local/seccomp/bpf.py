"""Compiles rules about system calls into the classic BPF program that seccomp runs (seccomp(2))."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
"""With the error's number added: the call fails with it."""

MAX_INSTRUCTIONS = 4096
MAX_JUMP = 255

# Of linux/bpf_common.h.
LOAD, AND, RETURN = 0x20, 0x54, 0x06
JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL = 0x05, 0x15, 0x25, 0x35
# Of struct seccomp_data. Both architectures are little-endian: the lower half of an argument comes first.
NUMBER, ARCHITECTURE, ARGUMENTS, ARGUMENT_BYTES = 0, 4, 16, 8

Instruction = tuple[int, int, int, int]
"""Code, jump when true, jump when false, constant."""


class Compare(StrEnum):
    """How an argument is compared, by the names of libseccomp."""

    NE = "SCMP_CMP_NE"
    LT = "SCMP_CMP_LT"
    LE = "SCMP_CMP_LE"
    EQ = "SCMP_CMP_EQ"
    GE = "SCMP_CMP_GE"
    GT = "SCMP_CMP_GT"
    MASKED_EQ = "SCMP_CMP_MASKED_EQ"


# The instruction to compare with, and whether the comparison holds where it jumps.
JUMPS = {
    Compare.NE: (JUMP_EQUAL, False),
    Compare.LT: (JUMP_GREATER_EQUAL, False),
    Compare.LE: (JUMP_GREATER, False),
    Compare.EQ: (JUMP_EQUAL, True),
    Compare.GE: (JUMP_GREATER_EQUAL, True),
    Compare.GT: (JUMP_GREATER, True),
    Compare.MASKED_EQ: (JUMP_EQUAL, True),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the lower 32 bits of an argument, counted from 0, must be; `mask` is for `MASKED_EQ` alone."""

    argument: int
    compare: Compare
    value: int
    mask: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a call when all comparisons hold."""

    action: int
    comparisons: tuple[Comparison, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """What becomes of the calls of one architecture.

    `calls` has the rules by the call's number; the first that holds decides, and `default` where none does.
    Calls beyond the number `newest` do not exist (ENOSYS), nor does x32, whose numbers have bit 30 set. Calls
    by the convention of another architecture (32 bits) end the process.
    """

    architecture: int
    calls: Mapping[int, tuple[Rule, ...]]
    default: int
    newest: int
    unknown: int


def compiled(rules: Rules) -> bytes:
    """The program, of 8 bytes an instruction. Raises `ValueError` where it would be too long."""
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, rules.architecture),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER),
        (JUMP_GREATER, 0, 1, rules.newest),
        (RETURN, 0, 0, rules.unknown),
        *_tree(_ranges(rules), rules.default),
    ]
    if len(program) > MAX_INSTRUCTIONS:
        raise ValueError(f"the program has {len(program)} instructions, more than {MAX_INSTRUCTIONS}")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _ranges(rules: Rules) -> list[tuple[int, tuple[Rule, ...]]]:
    """Neighbouring numbers with the same rules as one: the first number of each."""
    found: list[tuple[int, tuple[Rule, ...]]] = []
    for number in range(rules.newest + 1):
        of_call = rules.calls.get(number, ())
        if not found or found[-1][1] != of_call:
            found.append((number, of_call))
    return found


def _tree(ranges: Sequence[tuple[int, tuple[Rule, ...]]], default: int) -> list[Instruction]:
    """A binary search for the range of the number that has been loaded."""
    if len(ranges) == 1:
        return _decision(ranges[0][1], default)
    middle = len(ranges) // 2
    below, above = _tree(ranges[:middle], default), _tree(ranges[middle:], default)
    first = ranges[middle][0]
    if len(below) <= MAX_JUMP:
        return [(JUMP_GREATER_EQUAL, len(below), 0, first), *below, *above]
    return [(JUMP_GREATER_EQUAL, 0, 1, first), (JUMP, 0, 0, len(below)), *below, *above]


def _decision(rules: Sequence[Rule], default: int) -> list[Instruction]:
    """The rules of one call, one after the other."""
    found: list[Instruction] = []
    for rule in rules:
        found += _rule(rule)
        if not rule.comparisons:
            return found
    return [*found, (RETURN, 0, 0, default)]


def _rule(rule: Rule) -> list[Instruction]:
    """Ends with the action; jumps behind it where a comparison does not hold."""
    found: list[Instruction] = [(RETURN, 0, 0, rule.action)]
    for comparison in reversed(rule.comparisons):
        code, holds = JUMPS[comparison.compare]
        missed = len(found)
        jumps = (0, missed) if holds else (missed, 0)
        test: list[Instruction] = [(LOAD, 0, 0, ARGUMENTS + ARGUMENT_BYTES * comparison.argument)]
        if comparison.compare is Compare.MASKED_EQ:
            test.append((AND, 0, 0, comparison.mask))
        found = [*test, (code, *jumps, comparison.value), *found]
    return found
