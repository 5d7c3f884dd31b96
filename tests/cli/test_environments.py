"""`berth environments`: lists and awaited builds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from portal.catalog.environments.models import Environment, EnvironmentVersion
from portal.cli import environments
from portal.workspaces.models import Workspace
from provisioning.environment_messages import FailedLine
from tests.environments.helpers import built, failed, only, progress, ready
from tests.factories import MembershipFactory, make_token


@pytest.fixture
def as_olga(as_bob: Any, local_pool: Any, olga: Any, sent: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`berth …` signed in as an operator, on a portal with a building node."""
    monkeypatch.setenv("BERTH_TOKEN", make_token(olga)[1])
    return as_bob


@pytest.fixture
def at_each_wait(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Actions to run at each wait of the command, one after the other."""
    passed_s = [0.0]

    def happens(*steps: Callable[[], Any]) -> None:
        left = list(steps)

        def sleep(seconds: float) -> None:
            passed_s[0] += seconds
            left.pop(0)()

        clock = SimpleNamespace(monotonic=lambda: passed_s[0], sleep=sleep)
        monkeypatch.setattr(environments, "time", clock)

    return happens


def test_build_from_a_file_is_awaited(as_olga, sent, at_each_wait, tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text("numpy>=2\n")
    taken: list[Any] = []

    def begins() -> None:
        taken.append(only(sent))
        assert progress(taken[0], "installing", done=3, total=9)

    at_each_wait(begins, lambda: built(taken[0]))
    ran = as_olga("environments", "build", "tools", "--from", str(file), "--wait")
    assert (ran.code, ran.out) == (0, "tools: version 1 is ready, 300 MiB.\n"), ran.err
    assert "Installing 3 of 9 on node-1, 68 %" in ran.err
    made = Environment.objects.get(slug="tools")
    assert (made.team, made.versions.get().source_kind) == (None, "requirements")
    listed = as_olga("environments").out.splitlines()
    assert listed[1].split()[:3] == ["tools", made.python, "1"]
    assert as_olga("environments", "--json").json[0]["slug"] == "tools"


def test_up_uses_the_named_environment(as_olga, sent, olga, team):
    MembershipFactory(user=olga, team=team)
    ready(sent, name="Tools", slug="tools")
    asked = ("--template", "jupyterlab", "--flavor", "cpu-small", "--environment", "tools")
    assert as_olga("preview", *asked).code == 0
    ran = as_olga("up", *asked, "--name", "job", "--json")
    assert (ran.code, ran.json["environment"]) == (0, "tools"), ran.err
    assert "environment  tools" in as_olga("show", "job").out
    assert as_olga("up", *asked, "--name", "job", "--reuse").code == 0
    other = as_olga("up", "--environment", "minimal", "--name", "job", "--reuse")
    assert other.code == 2 and "with environment tools, not minimal" in other.err
    missing = as_olga("up", "--environment", "none-such")
    assert missing.code == 1 and "Environment not found" in missing.err
    assert as_olga("preview", *asked[:4], "--environment", "none-such").code == 1
    assert Workspace.objects.count() == 1


def test_failed_build_prints_the_line_and_an_exit_code(as_olga, sent, at_each_wait, tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text("numpy\npandsa\n")

    def fails() -> None:
        command = only(sent)
        progress(command, log="Resolving\nno pandsa in the index\x1b[31m\nThat is all\n")
        failed(command, "resolution_failed", failed_line=FailedLine(2, "no pandsa in the index"))

    at_each_wait(fails)
    ran = as_olga("environments", "build", "tools", "--from", str(file), "--wait")
    assert ran.code == 1
    assert f"{file}, line 2" in ran.err
    assert "  | no pandsa in the index    <-- failed here" in ran.err
    assert "That is all" not in ran.err
    # The corrected list is the next version.
    file.write_text("numpy\npandas\n")
    at_each_wait(lambda: built(only(sent)))
    assert (
        as_olga("environments", "build", "tools", "--from", str(file), "--wait", "--json").json["number"] == 2
    )
    assert EnvironmentVersion.objects.count() == 2


def test_retried_build_is_awaited_until_the_timeout(as_olga, sent, at_each_wait, tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text("numpy\n")
    at_each_wait(lambda: failed(only(sent), "index_unreachable"), lambda: None)
    # The timeout ends at the third poll.
    time_s = str(round(environments.POLL_INTERVAL_S * 1.5))
    ran = as_olga("environments", "build", "tools", "--from", str(file), "--wait", "--timeout", time_s)
    assert ran.code == 6
    assert "cannot reach the package index: It went wrong. Retrying." in ran.err


def test_requirements_file_of_powershell_is_read(as_olga, tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_bytes("numpy==1.26.4\r\n".encode("utf-16"))
    assert as_olga("environments", "build", "tools", "--from", str(file)).code == 0
    assert EnvironmentVersion.objects.get(environment__slug="tools").source == "numpy==1.26.4\n"


def test_invalid_arguments_and_files_are_refused(as_olga, tmp_path, bob, monkeypatch):
    file = tmp_path / "requirements.txt"
    file.write_text("-e git+https://example.org/x\n")
    assert as_olga("environments", "build", "tools", "--from", str(tmp_path / "none.txt")).code == 2
    refused = as_olga("environments", "build", "tools", "--from", str(file))
    assert refused.code == 1
    assert "Line 1 installs from a URL: -e git+https://example.org/x." in refused.err
    assert as_olga("environments", "build", "nothing").code == 5
    monkeypatch.setenv("BERTH_TOKEN", make_token(bob)[1])
    file.write_text("numpy\n")
    assert as_olga("environments", "build", "tools", "--from", str(file)).code == 1
    assert not Environment.objects.exists()
