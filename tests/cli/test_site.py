"""`berth export`, `berth plan` and `berth apply`."""

from __future__ import annotations

import json

import httpx
import pytest

from portal.cli import commands, main
from portal.cli.client import BerthClient
from portal.cli.errors import CliError


class Portal:
    """Answers as the portal does and records the requests."""

    def __init__(self, steps: list[dict[str, object]]) -> None:
        self.steps, self.sent = steps, []

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"site": {"berth": 1}, "yaml": "berth: 1\n"})
        body = json.loads(request.content)
        self.sent.append((request.url.path.removeprefix("/api/v1/site/"), body["yaml"], body["prune"]))
        return httpx.Response(200, json={"same": not self.steps, "steps": self.steps})


CHANGE = {"section": "flavors", "name": "small", "act": "change", "words": ["cpu_milli: 1000 → 2000"]}


def run(portal: Portal, *argv: str) -> int:
    arguments = main.parser().parse_args(argv)
    transport = httpx.MockTransport(portal.answer)
    with BerthClient("http://portal.example", "berth_x", transport=transport) as client:
        return getattr(commands, arguments.function)(client, arguments)


def test_export_prints_the_file(capsys):
    assert run(Portal([]), "export") == 0
    assert capsys.readouterr().out == "berth: 1\n"
    assert run(Portal([]), "export", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"berth": 1}


@pytest.mark.parametrize(("steps", "code"), [([], 0), ([CHANGE], 2)])
def test_plan_exit_code_shows_whether_anything_differs(tmp_path, capsys, steps, code):
    file = tmp_path / "site.yaml"
    file.write_text("berth: 1\n")
    portal = Portal(steps)
    assert run(portal, "plan", "-f", str(file)) == code
    assert portal.sent == [("plan", "berth: 1\n", False)]
    out = capsys.readouterr().out
    assert out == ("~ flavors small\n    cpu_milli: 1000 → 2000\n" if steps else "No changes.\n")


def test_apply_sends_the_file(tmp_path, capsys):
    file = tmp_path / "site.yaml"
    file.write_text("berth: 1\n")
    portal = Portal([CHANGE])
    assert run(portal, "apply", "-f", str(file), "--prune") == 0
    assert portal.sent == [("apply", "berth: 1\n", True)]
    assert "~ flavors small" in capsys.readouterr().out


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(CliError):
        run(Portal([]), "plan", "-f", str(tmp_path / "none.yaml"))
