"""Compares a site with a site file. Pure functions: documents in, steps out."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from portal.common.history.selectors import Difference

SECTIONS = (
    *("pools", "nodes", "cohorts", "teams", "site_limits", "rates", "environments", "flavors", "templates"),
    "reclaim_policies",
)
MAX_LINES = 40
NOTHING_KEPT: Mapping[str, Collection[str]] = {}
KEPT = frozenset({"nodes", "teams"})
"""Sections without deletions: teams have usage records, and nodes are machines."""


class Action(StrEnum):
    """Action of a step."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    MANUAL = "by_hand"


@dataclass(frozen=True, slots=True)
class Step:
    """One change. `desired` is the document in the file, or `None` for a deletion."""

    section: str
    name: str
    act: Action
    desired: Any = None
    changes: tuple[Difference, ...] = field(default=())

    @property
    def change_texts(self) -> list[str]:
        """The changes as text, one line per field."""
        if self.act is Action.CHANGE:
            return [line for change in self.changes for line in _change_lines(change)]
        if self.act is Action.MANUAL:
            return ["configured on the server, not in a file"]
        return []


def plan(
    present: Mapping[str, Any],
    desired: Mapping[str, Any],
    *,
    prune: bool = False,
    protected: Mapping[str, Collection[str]] = NOTHING_KEPT,
) -> list[Step]:
    """Return the steps from the current site to the desired one.

    Sections, entries and fields missing in the file stay unchanged. With `prune`, entries missing in a listed
    section are deleted, except for those in `protected` (by section).
    """
    steps: list[Step] = []
    for section in SECTIONS:
        if section in desired:
            section_steps = _entries(section, present.get(section, {}), desired[section] or {}, prune=prune)
            steps += [
                step
                for step in section_steps
                if step.act is not Action.DELETE or step.name not in protected.get(section, ())
            ]
    if "rules" in desired:
        steps += _rules(present.get("rules", []), desired["rules"] or [], prune=prune)
    if "sign_in_providers" in desired and desired["sign_in_providers"] != present.get("sign_in_providers"):
        steps.append(Step("sign_in_providers", "", Action.MANUAL))
    return steps


def _entries(
    section: str, present: Mapping[str, Any], desired: Mapping[str, Any], *, prune: bool
) -> Iterator[Step]:
    for name, document in desired.items():
        if name not in present:
            yield Step(section, name, Action.CREATE, document)
        elif changes := _differences(present[name], document):
            yield Step(section, name, Action.CHANGE, document, tuple(changes))
    if prune and section not in KEPT:
        yield from (Step(section, name, Action.DELETE) for name in present if name not in desired)


def _differences(before: Any, after: Any) -> list[Difference]:
    if not isinstance(after, Mapping):
        return [Difference("amount", before, after)] if before != after else []
    return [
        Difference(name, before.get(name), value)
        for name, value in after.items()
        if not _is_equal(name, before.get(name), value)
    ]


def _is_equal(name: str, before: Any, after: Any) -> bool:
    if name == "teams" and isinstance(before, list) and isinstance(after, list):
        return sorted(before) == sorted(after)
    if name == "build":
        # A requested build cannot be withdrawn.
        return bool(before) or not after
    if name == "quotas":
        return _with_all_limits(before or {}) == _with_all_limits(after or {})
    return bool(before == after)


def _with_all_limits(quotas: Mapping[str, Any]) -> dict[str, Any]:
    none = {"borrowing_limit": None, "lending_limit": None}
    return {resource: {**none, **quota} for resource, quota in quotas.items()}


def _rules(present: list[Any], desired: list[Any], *, prune: bool) -> Iterator[Step]:
    left = list(present)
    for rule in desired:
        full_rule = {"team": None, "enabled": True, **rule}
        if full_rule in left:
            left.remove(full_rule)
        else:
            yield Step("rules", _rule_name(full_rule), Action.CREATE, full_rule)
    if prune:
        yield from (Step("rules", _rule_name(rule), Action.DELETE, rule) for rule in left)


def _rule_name(rule: Mapping[str, Any]) -> str:
    return f"{rule['team'] or 'every team'}: {rule['resource']}"


def _change_lines(change: Difference) -> list[str]:
    """Return a change as lines of text; for multi-line text, only the added and removed lines."""
    before, after = change.before, change.after
    if isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        lines = [
            f"{change.field}: {line}"
            for line in difflib.ndiff(before.splitlines(), after.splitlines())
            if line[:2] in ("+ ", "- ")
        ]
        left_out = [f"{change.field}: …"] if len(lines) > MAX_LINES else []
        if lines:
            return [_text(line) for line in lines[:MAX_LINES]] + left_out
    return [f"{change.field}: {_text(before)} → {_text(after)}"]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= 200 else f"{text[:199]}…"
