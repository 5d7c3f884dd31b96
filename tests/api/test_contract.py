"""Nothing that has been released goes, and nothing that was not asked for is."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.api.conftest import DOCUMENT, document
from tests.api.contract import asked, offered, text

RELEASED = DOCUMENT.parent / "released-api.txt"
NEEDS = " needs "


def broken(released: str, schema: dict[str, Any]) -> list[str]:
    """What clients of the release could rely on, and no longer can.

    A field that may be null, or has one more type, from now on is among it; an optional parameter or a new
    field is not.
    """
    lines = set(released.splitlines())
    before_asked = {line for line in lines if NEEDS in line}
    known = {line.split(NEEDS)[0] for line in lines if NEEDS in line} | {_subject(line) for line in lines}
    gone = sorted(lines - before_asked - offered(schema))
    more = sorted(line for line in asked(schema) - before_asked if line.split(NEEDS)[0] in known)
    return [*(f"gone: {line}" for line in gone), *(f"now asked: {line}" for line in more)]


def _subject(line: str) -> str:
    """The operation or the schema that a line is about."""
    words = line.split(" ")
    return " ".join(words[:2]) if words[0].isupper() else words[0].split(".")[0]


def test_what_was_released_is_kept() -> None:
    assert broken(RELEASED.read_text(), document()) == [], (
        "Programs rely on it: keep it beside the new one, as docs/api.md promises. Where the changelog says "
        "that it goes, write the file again: python -m tests.api.contract > docs/released-api.txt"
    )


def _rename(schema: dict[str, Any]) -> None:
    schema["paths"]["/api/v1/workspaces"]["post"]["operationId"] = "makeWorkspace"


def _drop_parameter(schema: dict[str, Any]) -> None:
    schema["paths"]["/api/v1/workspaces"]["get"]["parameters"].pop()


def _drop_path(schema: dict[str, Any]) -> None:
    del schema["paths"]["/api/v1/workspaces/{workspace_id}/start"]


def _drop_field(schema: dict[str, Any]) -> None:
    del schema["components"]["schemas"]["Workspace"]["properties"]["url"]


def _may_be_null(schema: dict[str, Any]) -> None:
    schema["components"]["schemas"]["Workspace"]["properties"]["name"]["type"] = ["string", "null"]


def _drop_code(schema: dict[str, Any]) -> None:
    schema["components"]["schemas"]["ProblemCode"]["anyOf"][0]["enum"].remove("not_found")


def _ask_for_more(schema: dict[str, Any]) -> None:
    schema["components"]["schemas"]["WorkspaceCreateRequest"]["required"].append("name")


def _add(schema: dict[str, Any]) -> None:
    schema["components"]["schemas"]["Workspace"]["properties"]["mood"] = {"type": "string"}
    schema["paths"]["/api/v1/moods"] = deepcopy(schema["paths"]["/api/v1/version"])
    schema["components"]["schemas"]["MoodRequest"] = {
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_rename, "gone: POST /api/v1/workspaces is createWorkspace"),
        (_drop_parameter, "gone: GET /api/v1/workspaces takes query"),
        (_drop_path, "gone: POST /api/v1/workspaces/{workspace_id}/start answers 202"),
        (_drop_field, "gone: Workspace.url is string"),
        (_may_be_null, "gone: Workspace.name is string"),
        (_drop_code, "gone: ProblemCode may be 'not_found'"),
        (_ask_for_more, "now asked: WorkspaceCreateRequest needs name"),
        (_add, ""),
    ],
)
def test_what_breaks_clients_is_found(change: Any, said: str) -> None:
    schema = deepcopy(document())
    change(schema)
    found = broken(text(document()), schema)
    if said:
        assert any(line.startswith(said) for line in found), found
    else:
        assert found == []
