"""Compile system call rules into classic BPF for seccomp(2)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
"""The call fails with the errno added to this value."""

MAX_INSTRUCTIONS = 4096
MAX_JUMP = 255

# From linux/bpf_common.h.
LOAD, AND, RETURN = 0x20, 0x54, 0x06
JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL = 0x05, 0x15, 0x25, 0x35
# From struct seccomp_data. Both architectures are little-endian: the lower half of an argument is first.
NUMBER, ARCHITECTURE, ARGUMENTS, ARGUMENT_BYTES = 0, 4, 16, 8

Instruction = tuple[int, int, int, int]
"""Code, jump when true, jump when false, constant."""


class Compare(StrEnum):
    """Comparison of an argument, named as in libseccomp."""

    NE = "SCMP_CMP_NE"
    LT = "SCMP_CMP_LT"
    LE = "SCMP_CMP_LE"
    EQ = "SCMP_CMP_EQ"
    GE = "SCMP_CMP_GE"
    GT = "SCMP_CMP_GT"
    MASKED_EQ = "SCMP_CMP_MASKED_EQ"


# The jump instruction, and whether the comparison holds if it jumps.
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
    """Condition on the lower 32 bits of an argument (index from 0); `mask` is only for `MASKED_EQ`."""

    argument: int
    compare: Compare
    value: int
    mask: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """Action for a call if all comparisons hold."""

    action: int
    comparisons: tuple[Comparison, ...] = ()


@dataclass(frozen=True, slots=True)
class FilterRules:
    """Rules for the calls of one architecture.

    `calls` maps call numbers to rules. The first matching rule decides, else `default`. Calls above the
    number `newest` fail with ENOSYS, and so does x32, whose numbers have bit 30 set. Calls by another
    architecture's convention (32 bits) kill the process.
    """

    architecture: int
    calls: Mapping[int, tuple[Rule, ...]]
    default: int
    newest: int
    unknown: int


def compile_rules(rules: FilterRules) -> bytes:
    """Return the program, 8 bytes per instruction. Raises `ValueError` if it is too long."""
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
        raise ValueError(f"the program has {len(program)} instructions; the limit is {MAX_INSTRUCTIONS}")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _ranges(rules: FilterRules) -> list[tuple[int, tuple[Rule, ...]]]:
    """Merge neighbouring numbers with the same rules; return the first number of each range."""
    ranges: list[tuple[int, tuple[Rule, ...]]] = []
    for number in range(rules.newest + 1):
        of_call = rules.calls.get(number, ())
        if not ranges or ranges[-1][1] != of_call:
            ranges.append((number, of_call))
    return ranges


def _tree(ranges: Sequence[tuple[int, tuple[Rule, ...]]], default: int) -> list[Instruction]:
    """Return a binary search for the range of the loaded number."""
    if len(ranges) == 1:
        return _decision(ranges[0][1], default)
    middle = len(ranges) // 2
    below, above = _tree(ranges[:middle], default), _tree(ranges[middle:], default)
    first = ranges[middle][0]
    if len(below) <= MAX_JUMP:
        return [(JUMP_GREATER_EQUAL, len(below), 0, first), *below, *above]
    return [(JUMP_GREATER_EQUAL, 0, 1, first), (JUMP, 0, 0, len(below)), *below, *above]


def _decision(rules: Sequence[Rule], default: int) -> list[Instruction]:
    """Return the rules of one call, in order."""
    instructions: list[Instruction] = []
    for rule in rules:
        instructions += _rule(rule)
        if not rule.comparisons:
            return instructions
    return [*instructions, (RETURN, 0, 0, default)]


def _rule(rule: Rule) -> list[Instruction]:
    """Return a rule's instructions: the action last, skipped if a comparison fails."""
    instructions: list[Instruction] = [(RETURN, 0, 0, rule.action)]
    for comparison in reversed(rule.comparisons):
        code, holds = JUMPS[comparison.compare]
        missed = len(instructions)
        jumps = (0, missed) if holds else (missed, 0)
        test: list[Instruction] = [(LOAD, 0, 0, ARGUMENTS + ARGUMENT_BYTES * comparison.argument)]
        if comparison.compare is Compare.MASKED_EQ:
            test.append((AND, 0, 0, comparison.mask))
        instructions = [*test, (code, *jumps, comparison.value), *instructions]
    return instructions
