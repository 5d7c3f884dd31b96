"""Every code has a text in full sentences with the parameters of the code."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import cache
from pathlib import Path

import pytest
from django.utils.functional import Promise

from portal.common.errors import InvalidInput
from portal.common.problems import exception_handler
from portal.common.reasons import wording
from portal.common.reasons.codes import CommonCode, Rule
from portal.common.reasons.reason import Reason
from portal.common.reasons.registry import DuplicateCode, Registry, registry
from portal.common.reasons.rooms import modules_named
from portal.common.reasons.wording import message_of, next_action_of, text_of
from portal.fleet.inventory.codes import InventoryCode
from portal.gpu_checks.codes import CheckCode
from portal.people.accounts.codes import AccountCode
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import PlacementCode, WaitBasis
from portal.scheduling.engine.model import PreemptionCode
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import State
from portal.workspaces.wording.workspaces import STATE_WORDS

ROOT = Path(__file__).resolve().parents[2]
PORTAL = ROOT / "portal"
EVERY = (*registry.enumerations, PreemptionCode)
CODES = [code for each in EVERY for code in each]
PLACEHOLDER = re.compile(r"%\((\w+)\)[sd]")
ENDS = (".", "?", "!", "”", ")s", ")d")
CLAUSES = (PlacementCode, WaitBasis, PreemptionCode, AdmissionCode)
"""Their texts stand inside sentences."""


def formats(code: StrEnum) -> list[str]:
    """The formats of a code's text, each plural form separately."""
    found = []
    text = text_of(code)
    for pattern in (text.message, text.next_action):
        if isinstance(pattern, Promise):
            kwargs = getattr(pattern, "_kw", None) or pattern.__reduce__()[1][-1]  # type: ignore[attr-defined]
            if isinstance(kwargs, dict) and "singular" in kwargs:
                found += [kwargs["singular"], kwargs["plural"]]
                continue
        found.append(str(pattern))
    return [each for each in found if each]


def test_every_code_has_a_text_in_full_sentences() -> None:
    for code in CODES:
        name, patterns = f"{type(code).__name__}.{code.name}", formats(code)
        assert patterns, f"{name} has no text"
        for pattern in patterns:
            unnamed = re.search(r"%[sd]", PLACEHOLDER.sub("", pattern))
            assert not unnamed, f"{name}: a placeholder without a name in “{pattern}”"
            if not isinstance(code, CLAUSES):
                assert pattern.endswith(ENDS), f"{name}: “{pattern}” has no end"
                first = pattern[0]
                assert first in "%“" or first.isupper() or first.isdigit(), f"{name}: “{pattern}”"


def test_every_code_of_the_portal_is_registered_by_its_value() -> None:
    for name in ("codes", "wording"):
        paths = [*PORTAL.rglob(f"{name}.py"), *(path.parent for path in PORTAL.rglob(f"{name}/__init__.py"))]
        modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
        assert set(modules_named(name)) == modules
    assert all(
        registry.code_named(code.value) is code
        for enumeration in registry.enumerations
        for code in enumeration
    )


def test_codes_belong_to_a_room_that_uses_them() -> None:
    """A code is used in its room; a code of `portal.common` there or in at least two other rooms."""
    rooms: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path, tree in sources():
        if path.stem == "wording" or path.parent.name == "wording":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                rooms[node.value.id, node.attr].add(".".join(path.relative_to(ROOT).parts[:-1]))
    misplaced = []
    for code in CODES:
        if isinstance(code, Rule):
            continue  # the values of one decision: some are used by the engine only
        users = rooms[type(code).__name__, code.name]
        room = ".".join(type(code).__module__.split(".")[:2])
        used_there = any(f"{user}.".startswith(f"{room}.") for user in users)
        if not used_there and not (room == "portal.common" and len(users) > 1):
            misplaced.append(f"{type(code).__module__}.{type(code).__name__}.{code.name}: {sorted(users)}")
    assert misplaced == []


def test_two_codes_with_the_same_value_stop_the_start() -> None:
    class HereCode(StrEnum):
        GONE = "gone"

    class ThereCode(StrEnum):
        AWAY = "away"
        MISSING = "gone"

    codes = Registry()
    codes.register(HereCode)
    codes.register(HereCode)
    with pytest.raises(DuplicateCode, match=r"ThereCode\.MISSING and .*HereCode\.GONE"):
        codes.register(ThereCode)
    assert codes.enumerations == (HereCode,)
    with pytest.raises(LookupError):
        codes.code_named("away")


@cache
def sources() -> list[tuple[Path, ast.Module]]:
    """The modules of the portal, parsed."""
    return [(path, ast.parse(path.read_text())) for path in sorted(PORTAL.rglob("*.py"))]


def reasons_made() -> Iterator[tuple[str, str, str, frozenset[str]]]:
    """Each `Reason(Code.MEMBER, {"literal": …})` of the portal: place, class, member, parameter names."""
    for path, tree in sources():
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Reason"
            ):
                continue
            if not (node.args and isinstance(node.args[0], ast.Attribute)):
                continue
            owner = node.args[0].value
            params = node.args[1] if len(node.args) > 1 else ast.Dict([], [])
            known = isinstance(params, ast.Dict) and all(isinstance(key, ast.Constant) for key in params.keys)
            if isinstance(owner, ast.Name) and known:
                names = frozenset(key.value for key in params.keys)  # type: ignore[union-attr,misc]
                yield f"{path.relative_to(ROOT)}:{node.lineno}", owner.id, node.args[0].attr, names


def test_texts_use_only_parameters_of_their_code() -> None:
    """For literal params at the call; `prepare` derives its additions from them."""
    by_name = {each.__name__: each for each in registry.enumerations}
    made: dict[str, int] = defaultdict(int)
    wrong = []
    for where, owner, member, names in reasons_made():
        enumeration = by_name.get(owner)
        if enumeration is None:
            continue
        made[owner] += 1
        code = enumeration[member]
        text = text_of(code)
        if text.prepare is None:
            missing = {name for each in formats(code) for name in PLACEHOLDER.findall(each)} - names
            if missing:
                wrong.append(f"{where}: {owner}.{member} lacks {sorted(missing)}")
    assert wrong == []
    assert made["AccountCode"] > 10
    assert made["WorkspaceCode"] > 10


def test_state_words_match_the_labels() -> None:
    assert {state.value: state.label.lower() for state in State} == {
        state: str(word) for state, word in STATE_WORDS.items()
    }


@pytest.mark.parametrize(
    ("code", "params", "sentence"),
    [
        (AccountCode.MEMBER_HAS_WORKSPACES, {"username": "ben", "count": 1, "team": "Vision"},
         "ben still has 1 workspace charged to Vision."),
        (AccountCode.MEMBER_HAS_WORKSPACES, {"username": "ben", "count": 3, "team": "Vision"},
         "ben still has 3 workspaces charged to Vision."),
        (WorkspaceCode.APP_EXITED, {"template": "marimo", "exit_code": 3},
         "marimo exited unexpectedly (exit code 3)."),
        (WorkspaceCode.APP_EXITED, {"template": "marimo"}, "marimo exited unexpectedly."),
        (WorkspaceCode.DEVICE_LOST, {"devices": ["GPU 0 of a"]},
         "GPU 0 of a has disappeared: the driver no longer lists it."),
        (WorkspaceCode.DEVICE_LOST, {"devices": ["GPU 0 of a", "GPU 1 of a", "GPU 2 of a"]},
         "GPU 0 of a, GPU 1 of a and GPU 2 of a have disappeared: the driver no longer lists them."),
        (WorkspaceCode.DEVICE_LOST, {"devices": ["GPU 0 of a"], "replaced": True},
         "GPU 0 of a has disappeared. The workspace is queued for another one."),
        (CheckCode.CHECK_FAILED, {"devices": ["GPU 0 of a", "GPU 1 of a"]},
         "GPU 0 of a failed its check and GPU 1 of a failed its check. The workspace is queued again."),
        (CheckCode.CHECK_FAILED, {"devices": ["GPU 0 of a"], "unknown": True},
         "GPU 0 of a could not be checked. The workspace is queued again."),
        (CommonCode.CHOOSE_ONE_OF, {"known": ["a", "b"]}, "Choose one of: a, b."),
        (InventoryCode.DRIVER_REPORT, {"message": "100 % of the disk is %(used)s."},
         "100 % of the disk is %(used)s."),
    ],
)  # fmt: skip
def test_messages_of_reasons(code: StrEnum, params: dict[str, object], sentence: str) -> None:
    assert message_of(Reason(code, params)) == sentence


def test_reason_round_trips_through_a_row() -> None:
    reason = Reason(WorkspaceCode.DEVICE_LOST, {"devices": ["GPU 0 of a"]})
    kept = Reason.from_json(reason.as_json())
    assert kept == reason
    assert next_action_of(kept) == "Start the workspace again to get another device. Its files are kept."
    with pytest.raises(LookupError):
        Reason.from_json({"code": "of another version"})


def test_problem_has_message_and_reason() -> None:
    known = {"known": ["all"]}
    error = InvalidInput(
        Reason(AccountCode.NO_SCOPES, known),
        errors={"scopes": [Reason(AccountCode.CHOOSE_SCOPES, known)], "name": ["A validator's own."]},
    )
    response = exception_handler(error, {})
    assert response is not None
    assert response.data["detail"] == str(error) == "Choose at least one scope."
    assert response.data["next_action"] == "Choose from: all."
    assert response.data["errors"] == {"scopes": ["Choose from: all."], "name": ["A validator's own."]}
    assert response.data["reason"] == {"code": "no_scopes", "params": {"known": ["all"]}}


def test_concurrent_first_lookups_of_texts_succeed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first requests of a process run in several threads."""
    real = wording.import_module
    asked: list[object] = []

    def slow(name: str) -> object:
        if not asked and name == "portal.catalog.wording":
            asked.append(name)
            with ThreadPoolExecutor(1) as other:
                asked.append(other.submit(text_of, PlacementCode.CPU_SHORT).result(timeout=30))
        return real(name)

    monkeypatch.setattr(wording, "import_module", slow)
    wording._texts.cache_clear()
    assert text_of(WorkspaceCode.NOT_VISIBLE).message
    assert asked[1] == text_of(PlacementCode.CPU_SHORT)
