"""The image and compose.yaml on a real engine, step by step: `make test-compose`, as root.

Each step continues the previous one; the first failure ends the run. File names here do not match pytest's
pattern, so that only that command collects them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from portal.cli.loopback import LoopbackTransport
from provisioning.service.environ import ROOT
from tests.compose import bases, stack
from tests.compose.engine import Engine, engine
from tests.compose.stack import ONE_OFF, Stack
from tests.e2e.kernels import channels, execute
from tests.e2e.test_browser import DESKTOP, Person, run_a_cell
from tests.instance import Api, eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RESULTS = ROOT / "test-results" / "compose"
START_S = 180
TEAM, FLAVOR = "vision", "cpu-small"


def say(*words: Any) -> None:
    """Add to the report: versions and durations, for docs/containers.md."""
    print("\n   ", *words, flush=True)


class Clock:
    """Report the duration of a step."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        self.begun = time.monotonic()

    def __exit__(self, kind: object, *rest: object) -> None:
        say(f"{self.what}: {time.monotonic() - self.begun:.0f} s{'' if kind is None else ', then it failed'}")


@pytest.fixture(scope="module")
def docker() -> Iterator[Engine]:
    # Clean up after signals too.
    had = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with engine() as docker_engine:
        say(docker_engine.version())
        yield docker_engine
    signal.signal(signal.SIGTERM, had)


@pytest.fixture(scope="module")
def berth(
    docker: Engine, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stack]:
    """The stack; removed completely afterwards."""
    folder = tmp_path_factory.mktemp("compose")
    stack = Stack(docker, folder)
    had = {tag for tag in bases.required() if docker.has_image(tag)}
    RESULTS.mkdir(parents=True, exist_ok=True)
    try:
        with Clock("base images"):
            for tag, origin in bases.prepare(docker, folder).items():
                say(f"{tag}: {origin}")
        stack.use("today")
        yield stack
        if request.session.testsfailed:
            (RESULTS / "services.log").write_text(stack.last_lines())
    finally:
        stack.remove()
        for tag in bases.required():
            if tag not in had and docker.has_image(tag):
                docker.docker("image", "rm", "--force", tag)
        if stack.log.exists():
            (RESULTS / "compose.log").write_text(stack.log.read_text())
    assert not stack.left(), stack.left()


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """Values passed between steps."""
    return {}


def arrive(browser: Browser, berth: Stack, workspace_id: str, user: str, shots: str) -> Person:
    """Sign in with a password and open a workspace; return the page."""
    person = Person(browser, berth, user, shots, **DESKTOP)
    person.sign_in()
    person.page.goto(berth.url + f"/workspaces/{workspace_id}/")
    person.page.goto(berth.origin(workspace_id) + "/lab")
    return person


def started(api: Api, *, team: str, name: str) -> str:
    """Start a JupyterLab; return its id once it runs."""
    workspace = api.create("jupyterlab", FLAVOR, team=team, name=name)
    api.wait(workspace["id"], "running", limit_s=START_S)
    return str(workspace["id"])


def until_ended(api: Api, workspace_id: str) -> dict[str, Any]:
    """The workspace, once it is reported as stopped and cleaned up."""

    def ended_workspace() -> dict[str, Any] | None:
        workspace: dict[str, Any] = api.workspace(workspace_id)
        return workspace if workspace["state"] in {"failed", "stopped", "terminated"} else None

    return eventually(
        ended_workspace, limit_s=180, what=lambda: f"it has ended: {api.workspace(workspace_id)}"
    )


def kernel_of(berth: Stack, token: str, workspace_id: str) -> str:
    with httpx.Client(transport=LoopbackTransport(), timeout=30) as client:
        answer = client.post(
            f"{berth.origin(workspace_id)}/api/kernels",
            json={"name": "python3"},
            headers={"Authorization": f"Bearer {token}"},
        )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def run(berth: Stack, token: str, workspace_id: str, kernel: str, code: str) -> str:
    with channels(berth.origin(workspace_id), token, kernel) as channel:
        return execute(channel, code)


def test_every_service_is_up_and_healthy(berth: Stack) -> None:
    with Clock("the image"):
        berth.build()
    with Clock("up -d --build, all healthy"):
        berth.up("--build")
        berth.until_healthy()
    assert set(berth.containers()) == berth.services()
    assert berth.answers(), "the front door shows no sign-in"


def test_notebook_runs_a_cell_in_a_browser(berth: Stack, browser: Browser, kept: dict[str, Any]) -> None:
    berth.tokens["admin"] = berth.manage("create_token", "admin")
    api = berth.api("admin")
    with Clock("JupyterLab, from creation to running"):
        kept["id"] = started(api, team="default", name="first")
    admin = arrive(browser, berth, kept["id"], "admin", "compose")
    try:
        run_a_cell(admin, "sum.ipynb")
    except BaseException:
        admin.testify()
        raise
    finally:
        admin.context.close()
    saved = berth.contents(kept["id"], berth.tokens["admin"], "sum.ipynb")
    assert "1+1" in saved, saved
    api.close()


def test_workspace_keeps_running_while_services_are_killed(berth: Stack, kept: dict[str, Any]) -> None:
    token, workspace_id = berth.tokens["admin"], kept["id"]
    kernel = kernel_of(berth, token, workspace_id)
    run(berth, token, workspace_id, kernel, "kept = 6 * 7; open('note.txt', 'w').write('from a cell')")
    before = berth.containers()
    killed = sorted(berth.services() - ONE_OFF - {"node"})
    with Clock(f"kill -9 of {', '.join(killed)}, until pages answer"):
        for name in killed:
            os.kill(before[name]["State"]["Pid"], signal.SIGKILL)
        eventually(berth.answers, limit_s=180, what="pages answer again")
    berth.until_healthy()
    after = berth.containers()
    for name in killed:
        assert after[name]["RestartCount"] > before[name]["RestartCount"], f"{name} was not started again"
    assert after["node"]["State"]["StartedAt"] == before["node"]["State"]["StartedAt"]
    api = berth.api("admin")
    assert api.workspace(workspace_id)["state"] == "running"
    # The same kernel, with its variables.
    assert run(berth, token, workspace_id, kernel, "print(kept)") == "42\n"
    api.close()


def test_node_restart_stops_the_workspace_and_keeps_its_files(berth: Stack, kept: dict[str, Any]) -> None:
    token, api = berth.tokens["admin"], berth.api("admin")
    berth.compose("restart", "node", limit_s=180)
    with Clock("restart of the node, until its workspace is said to have ended"):
        workspace = until_ended(api, kept["id"])
    say(workspace["state"], workspace["reason"], workspace["error"])
    assert workspace["state"] == "failed" and workspace["error"]["code"] == "agent_lost", workspace
    berth.until_healthy()
    api.act(kept["id"], "start")
    api.wait(kept["id"], "running", limit_s=START_S)
    assert berth.contents(kept["id"], token, "note.txt") == "from a cell"
    assert "1+1" in berth.contents(kept["id"], token, "sum.ipynb")
    api.close()


def test_removed_stack_leaves_nothing(berth: Stack) -> None:
    assert berth.left(), "what is asked here finds nothing of a stack that runs"
    berth.remove()
    assert not berth.left(), berth.left()


def test_previous_version_runs_with_data(berth: Stack, tmp_path: Path, kept: dict[str, Any]) -> None:
    commit = stack.version_before()
    if commit is None:
        pytest.skip(f"there is no release to upgrade from; {stack.BEFORE} can name a commit")
    say("the version before:", stack.git("log", "-1", "--format=%h of %cd, %s", "--date=short", commit))
    tree = stack.tree_of(commit, tmp_path / "before")
    kept["new"] = stack.migrations(ROOT) - stack.migrations(tree)
    berth.use("before", tree)
    with Clock("its image"):
        berth.build()
    with Clock("up -d, all healthy"):
        berth.up()
        berth.until_healthy()
    assert not kept["new"] & berth.applied()
    berth.tokens["admin"] = berth.manage("create_token", "admin")
    admin = berth.api("admin")
    admin.json("POST", "teams", {"slug": TEAM, "name": "Vision"})
    admin.close()
    berth.manage("create_user", "ada", "--team", TEAM, BERTH_USER_PASSWORD=stack.PASSWORD)
    berth.tokens["ada"] = berth.manage("create_token", "ada")
    ada = berth.api("ada")
    kept["id"] = started(ada, team=TEAM, name="experiment")
    kernel = kernel_of(berth, berth.tokens["ada"], kept["id"])
    run(
        berth, berth.tokens["ada"], kept["id"], kernel, "open('data.txt', 'w').write('of the version before')"
    )
    ada.close()


def test_current_image_keeps_data_of_the_previous_version(
    berth: Stack, browser: Browser, kept: dict[str, Any]
) -> None:
    if "new" not in kept:
        pytest.skip("there is no release to upgrade from")
    berth.use("today")
    berth.build()
    with Clock("up -d of today's image over it, all healthy"):
        berth.up()
        berth.until_healthy()
    expected = berth.image("today")
    portal = {name: row["Config"]["Image"] for name, row in berth.containers().items()}
    assert {portal[name] for name in ("web", "control", "beat", "gateway", "node", "migrate")} == {
        expected
    }, portal
    missing = kept["new"] - berth.applied()
    assert not missing, f"these migrations did not run: {sorted(missing)}"
    say("migrations that ran:", *sorted(kept["new"]))
    # Her token, her team, her workspace.
    ada = berth.api("ada")
    assert ada.json("GET", "me")["username"] == "ada"
    assert TEAM in [row["slug"] for row in ada.json("GET", "teams")["results"]]
    workspaces = [(row["id"], row["name"]) for row in ada.json("GET", "workspaces")["results"]]
    assert workspaces == [(kept["id"], "experiment")]

    # It ran in the container that was replaced.
    until_ended(ada, kept["id"])
    ada.act(kept["id"], "start")
    ada.wait(kept["id"], "running", limit_s=START_S)
    assert berth.contents(kept["id"], berth.tokens["ada"], "data.txt") == "of the version before"
    # Her password still works, and she sees her workspace.
    person = arrive(browser, berth, kept["id"], "ada", "compose-upgraded")
    try:
        person.page.locator(".jp-DirListing-item", has_text="data.txt").wait_for(timeout=START_S * 1000)
    except BaseException:
        person.testify()
        raise
    finally:
        person.context.close()
        ada.close()
