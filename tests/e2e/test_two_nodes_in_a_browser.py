"""Two machines in their own networks, one front door, and two users with browsers.

The operator adds both with the page's command, drains one and revokes the other; ada works on both. The tests
run in order.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import expect

from tests import instance
from tests.e2e.conftest import FAILED, SHOTS
from tests.e2e.second_machine import HOME_LIMIT_MIB, SecondMachine, network
from tests.e2e.test_browser import DESKTOP, PHONE, Person, run_a_cell
from tests.e2e.test_two_machines import OPERATOR
from tests.instance import Api, Berth, eventually
from tests.ports import consecutive_ports

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.engine,
    pytest.mark.browser,
    pytest.mark.xdist_group("two-nodes"),
    pytest.mark.thorough("two whole machines"),
]
LIMIT_S = 120
LIMIT_MS = LIMIT_S * 1000
SOON_MS = 60_000
"""In which a page that is open has to say what happened; nobody loads it again."""
TEAMS = {"node-x": "lab", "node-y": "optics"}
"""ada's teams. A home belongs to a user in a team: she has one on each machine."""
OPTICS = """
import django; django.setup()
from portal.people.accounts import services
from portal.common.actors import SYSTEM
team = services.create_team(actor=SYSTEM, slug="optics", name="Optics")
services.set_member(actor=SYSTEM, team=team, username="ben", role="owner")
services.set_member(actor=SYSTEM, team=team, username="ada", role="member")
"""


@dataclass
class Site:
    """The portal, two machines, and their users."""

    berth: Berth
    machines: dict[str, SecondMachine]
    operator: Api
    ada_api: Api
    admin: Person
    ada: Person
    workspaces: dict[str, str] = field(default_factory=dict)
    pages: dict[str, Page] = field(default_factory=dict)

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self.operator.json("GET", "nodes")["results"]}

    def cordon(self, name: str, verb: str = "cordon") -> None:
        self.operator.json("POST", f"nodes/{self.nodes()[name]['id']}/{verb}", {})

    def marker(self, node: str) -> str:
        return "ws-" + self.workspaces[node].replace("-", "")

    def machines_page(self) -> Page:
        """The machines of the pool, reached by links."""
        page = self.admin.page
        page.goto(f"{self.berth.url}/pools/")
        page.locator(f"main a[href='/pools/{self.nodes()['node-a']['pool']}/']").first.click()
        page.get_by_role("link", name="Add machine").click()
        page.get_by_role("heading", name="Machines", exact=True).wait_for()
        return page

    def row(self, node: str) -> Any:
        return self.admin.page.locator("#live tbody tr").filter(has_text=node)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Site]:
    environment = instance.need_notebook_environment()
    folder = tmp_path_factory.mktemp("nodes")
    with network() as first, network() as second:
        variables = {
            "BERTH_NODES_ADDRESS": first.here,
            "BERTH_NODES_PORT": str(consecutive_ports(2)),
            "BERTH_HEARTBEAT_S": "4",
            # On a loaded machine the page needs some seconds.
            "BERTH_PREEMPTION_GRACE_S": "30",
            "BERTH_NODE_LEASE_S": "8",
            "BERTH_HOME_LIMIT_MIB": HOME_LIMIT_MIB,
        }
        machines = {
            name: SecondMachine(folder / name, wire, environment=environment, own_id=True)
            for name, wire in (("node-x", first), ("node-y", second))
        }
        people: list[Person] = []
        try:
            with instance.running(folder, environment=environment, **variables) as berth:
                berth.run("-c", OPTICS, DJANGO_SETTINGS_MODULE="portal.settings")
                berth.tokens["admin"] = berth.run(
                    "-c", OPERATOR, DJANGO_SETTINGS_MODULE="portal.settings"
                ).strip()
                people = [
                    Person(browser, berth, "admin", "two-nodes-admin", color_scheme="light", **DESKTOP),
                    Person(browser, berth, "ada", "two-nodes-ada", color_scheme="light", **DESKTOP),
                ]
                found = Site(berth, machines, berth.api("admin"), berth.api("ada"), *people)
                found.cordon("node-a")
                for person in people:
                    person.context.set_default_timeout(LIMIT_MS)
                    person.page.set_default_timeout(LIMIT_MS)
                    person.sign_in()
                yield found
                for row in found.ada_api.json("GET", "workspaces")["results"]:
                    found.ada_api.act(row["id"], "delete")
                for machine in machines.values():
                    machine.end()
                for api in (found.operator, found.ada_api):
                    api.close()
        finally:
            for person in people:
                person.context.close()
            for machine in machines.values():
                machine.end()


@pytest.fixture(autouse=True)
def witness(site: Site, request: pytest.FixtureRequest) -> Iterator[None]:
    """After a failed test: the content of each open page, and the state from the API."""
    yield
    if not request.node.stash.get(FAILED, False):
        return
    for name, page in site.pages.items():
        with suppress(PlaywrightError):
            page.screenshot(path=site.ada.shot_path(f"{name}-failed"), full_page=True, timeout=10_000)
    for person in (site.admin, site.ada):
        person.testify()
    said = {path: site.operator.json("GET", path) for path in ("workspaces", "nodes", "events?sort=-id")}
    SHOTS.joinpath("two-nodes-failed.json").write_text(json.dumps(said, indent=1))


def test_command_of_the_page_adds_both_nodes(site: Site) -> None:
    site.admin.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site.berth.url)
    for name, machine in site.machines.items():
        page = site.machines_page()
        page.get_by_role("button", name="Add machine").click()
        page.get_by_role("button", name="Copy").click()
        page.get_by_text("Copied").first.wait_for()
        words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
        assert words[:3] == ["berth", "node", "join"] and words[4] == "--token", words[:3]
        site.admin.shot(f"command-{name}")
        done = machine.join(words[3], words[5], name)
        assert done.returncode == 0, done.stdout + done.stderr
        machine.run()
        expect(site.row(name)).to_contain_text("Online", timeout=LIMIT_MS)
        site.admin.shot(f"joined-{name}")
    assert site.nodes()["node-x"]["online"] and site.nodes()["node-y"]["online"]


def test_notebook_on_each_node(site: Site) -> None:
    """Each on the machine of its home, both through the front door."""
    for name, team in TEAMS.items():
        (other,) = set(TEAMS) - {name}
        site.cordon(other)
        page = site.ada.page = site.ada.context.new_page()
        page.goto(f"{site.berth.url}/workspaces/new/?team={team}")
        site.ada.shot(f"new-{name}")
        assert page.locator("#team").input_value() == team
        page.locator("#start").click()
        site.ada.arrive()
        site.cordon(other, "uncordon")
        run_a_cell(site.ada, f"on-{name}.ipynb")
        site.ada.shot(f"cell-{name}")
        (row,) = [
            result for result in site.ada_api.json("GET", "workspaces")["results"] if result["team"] == team
        ]
        site.workspaces[name] = row["id"]
        assert site.machines[name].owned(site.marker(name))
        assert not site.machines[other].owned(site.marker(name))
    # A browser has six connections per site, and each visible page uses two.
    for page in site.ada.context.pages:
        page.close()
    for name in TEAMS:
        page = site.pages[name] = site.ada.context.new_page()
        page.goto(f"{site.berth.url}/workspaces/{site.workspaces[name]}/")
        expect(page.locator("[aria-labelledby=facts-title]")).to_contain_text(name)


def test_killed_worker_and_workspace_are_explained_on_the_page(site: Site) -> None:
    """Worker and workspace are killed at once."""
    machine, page = site.machines["node-x"], site.pages["node-x"]
    before = machine.services()["node"]["pid"]
    os.kill(before, signal.SIGKILL)
    for each in machine.owned(site.marker("node-x")):
        with suppress(ProcessLookupError):  # it may have ended already
            os.kill(each.pid, signal.SIGKILL)
    again = page.get_by_role("button", name="Try again")
    again.wait_for(timeout=LIMIT_MS)
    note = page.locator("#live .note.bad")
    expect(note).to_have_count(1)
    assert note.get_by_role("button").count() == 1, "one next action"
    expect(page.locator("#live .actions .primary")).to_have_count(0)
    page.screenshot(path=site.ada.shot_path("killed"), full_page=True)
    machine.until_running()
    assert machine.services()["node"]["pid"] != before
    # Pages redirect until the notebook opens.
    again.click(no_wait_after=True)
    page.wait_for_url(re.compile(r"^http://ws-[0-9a-f]{32}\.localhost:"), timeout=LIMIT_MS)
    kept = page.locator(".jp-DirListing-item", has_text="on-node-x.ipynb")
    kept.wait_for(timeout=LIMIT_MS)
    page.goto(f"{site.berth.url}/workspaces/{site.workspaces['node-x']}/")


def test_node_is_drained_and_returned_to_service(site: Site) -> None:
    """Ada's workspace waits for its home's node, as no other is open, and starts again automatically."""
    site.cordon("node-y")
    admin, page = site.machines_page(), site.pages["node-x"]
    site.row("node-x").get_by_role("link", name="Cordon or drain").click()
    admin.get_by_role("link", name="Drain").click()
    admin.get_by_label("Note").fill("New memory")
    site.admin.shot("drain")
    admin.get_by_role("button", name="Drain node-x").click()
    page.get_by_text("Preempted in").wait_for(timeout=SOON_MS)
    page.screenshot(path=site.ada.shot_path("drained-told"), full_page=True)
    expect(page.locator("#live .note.wait").first).to_contain_text("and 2 more nodes", timeout=LIMIT_MS)
    eventually(lambda: not site.machines["node-x"].owned(), limit_s=LIMIT_S, what="nothing runs on node-x")
    page.screenshot(path=site.ada.shot_path("drained-waits"), full_page=True)
    assert site.ada_api.workspace(site.workspaces["node-y"])["state"] == "running"
    site.admin.shot("drained")
    admin.get_by_role("button", name="Return to service").click()
    page.locator("#act-open").wait_for(timeout=LIMIT_MS)
    site.cordon("node-y", "uncordon")


def test_revoked_node_is_explained_on_the_page(site: Site) -> None:
    """The page updates live, shows what to do, and offers no unreachable workspace."""
    site.machines_page()
    page = site.pages["node-y"]
    expect(page.locator("#act-open")).to_be_visible()
    site.row("node-y").get_by_role("link", name="Revoke").click()
    site.admin.shot("revoke")
    site.admin.page.get_by_role("button", name="Revoke node-y").click()
    note = page.locator("#live .note").filter(has_text="node-y was revoked")
    note.wait_for(timeout=SOON_MS)
    expect(note).to_contain_text("Ask an operator about its files")
    expect(page.locator("#act-open")).to_have_count(0)
    page.screenshot(path=site.ada.shot_path("revoked"), full_page=True)
    expect(site.row("node-y")).to_contain_text("Revoked", timeout=SOON_MS)
    site.admin.shot("revoked")
    workspace_id = site.workspaces["node-y"]
    eventually(
        lambda: site.berth.enter(workspace_id, site.ada_api.token, "/api") == 503,
        limit_s=LIMIT_S,
        what="nobody enters",
    )
    small = Person(
        site.ada.context.browser, site.berth, "ada", "two-nodes-phone", color_scheme="dark", **PHONE
    )
    small.sign_in()
    small.page.get_by_text("Machine revoked").first.wait_for()
    small.shot("home")
    small.page.goto(f"{site.berth.url}/workspaces/{workspace_id}/")
    small.page.get_by_text("node-y was revoked").first.wait_for()
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert small.page.evaluate(wide) <= 0
    small.shot("revoked")
    small.context.close()

    # The other machine keeps running.
    site.ada.page = site.pages["node-x"]
    site.ada.page.goto(f"{site.berth.url}/workspaces/{site.workspaces['node-x']}/open/")
    site.ada.arrive()
    site.ada.page.locator(".jp-DirListing-item", has_text="on-node-x.ipynb").wait_for(timeout=LIMIT_MS)
    assert site.ada_api.workspace(site.workspaces["node-x"])["state"] == "running"


def test_drain_moves_homes_to_another_node(site: Site) -> None:
    """To the portal's machine: the workspace stops, its home moves, and it starts there."""
    site.cordon("node-a", "uncordon")
    workspace_id = site.workspaces["node-x"]
    page = site.pages["node-x"]
    page.goto(f"{site.berth.url}/workspaces/{workspace_id}/")
    admin = site.machines_page()
    site.row("node-x").get_by_role("link", name="Cordon or drain").click()
    expect(admin.locator("[aria-labelledby=homes-title]")).to_contain_text("1 home folder")
    site.admin.shot("node-with-homes")
    admin.get_by_role("link", name="Drain").click()
    admin.get_by_label("Move home folders to").select_option("node-a")
    site.admin.shot("drain-with-homes")
    admin.get_by_role("button", name="Drain node-x").click()
    admin.get_by_role("heading", name="Moving to node-a").wait_for()
    expect(admin.locator("#live")).to_contain_text("1 remaining home folder is in use by workspaces")
    site.admin.shot("homes-wait")
    expect(admin.locator("#live")).to_contain_text("1 of 1 moved", timeout=LIMIT_MS)
    expect(admin.locator("#live")).to_contain_text("Done", timeout=LIMIT_MS)
    site.admin.shot("homes-moved")
    expect(page.locator("[aria-labelledby=facts-title]")).to_contain_text("node-a", timeout=LIMIT_MS)
    page.locator("#act-open").wait_for(timeout=LIMIT_MS)
    page.screenshot(path=site.ada.shot_path("moved"), full_page=True)
    assert (site.berth.home / "homes" / "lab" / "ada" / "on-node-x.ipynb").exists()
    assert site.berth.owned(site.marker("node-x")) and not site.machines["node-x"].owned()
    admin.set_viewport_size(PHONE["viewport"])  # type: ignore[arg-type]
    admin.emulate_media(color_scheme="dark")
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert admin.evaluate(wide) <= 0
    site.admin.shot("homes-moved-phone")
