"""The five journeys. Each function gets a visitor who is signed in."""

from __future__ import annotations

import re

from bench.journeys.site import DRAINED_FOR, NOTE
from bench.journeys.visitor import Visitor

NAMES = ["mia", "noah", "emma", "liam", "olivia", "paul", "sofia", "jonas", "lena", "tom"]


def first_notebook(visitor: Visitor) -> None:
    """Start JupyterLab as a member with the form's default values, and wait for its launcher."""
    visitor.click("New workspace")
    visitor.click("Start")
    visitor.page.locator(".jp-Launcher").first.wait_for()


def first_hour(visitor: Visitor) -> None:
    """Add two teams, ten people, quotas, a template and an environment as an administrator."""
    page = visitor.page
    for team, people in (("Vision", NAMES[:5]), ("Robots", NAMES[5:])):
        visitor.click("Teams", within="nav")
        visitor.fill("#id_name", team)
        visitor.click("Create team")
        visitor.click(re.compile("^Invite"), within="main")
        visitor.fill("#people", "\n".join(f"{name}@example.org" for name in people))
        visitor.click("Check list")
        visitor.click(re.compile("^Invite"), role="button", within="main")
        visitor.wait_for_text(people[-1], within="main")
    visitor.click("Quotas", within="nav")
    for team in ("vision", "robots"):
        visitor.fill(f'[name="q/{team}/gpu/-"]', "16")
        visitor.fill(f'[name="q/{team}/cpu_milli/-"]', "64")
    visitor.press(page.locator("#review"))
    visitor.click(re.compile("^(Save|Apply)"), role="button", within="main")
    visitor.click("Catalog", within="nav")
    visitor.click("New template", within="main")
    visitor.click("Web app on a port", within="main")
    visitor.fill("#id_name", "Dashboard")
    visitor.click("Create template")
    visitor.wait_for_text("Dashboard", within="main")
    visitor.click("Environments", within="nav")
    visitor.click("New environment", within="main")
    visitor.fill("#id_name", "Small tools")
    visitor.fill("#id_source", "six==1.17.0")
    visitor.click("Create and build")
    visitor.wait_for_text("Small tools", within="main")


def team_owner(visitor: Visitor) -> None:
    """As an owner, find the holders of the team's GPUs, send a message, cap a member and invite a person."""
    page = visitor.page
    visitor.click("Teams", within="nav")
    if page.url.rstrip("/").endswith("/teams"):
        visitor.click("Lab", within="main")
    visitor.choose("#cap-resource", "workspaces")
    visitor.fill("#cap-amount", "20")
    visitor.click("Set cap")
    visitor.click("Invite people", within="main")
    visitor.fill("#people", "mia@example.org")
    visitor.click("Check list")
    visitor.click(re.compile("^Invite"), role="button", within="main")
    visitor.wait_for_text("mia", within="main")


def approver(visitor: Visitor) -> None:
    """As an approver, open the inbox on a phone, read the evidence and approve."""
    visitor.click(re.compile("^Inbox"), within="nav")
    visitor.click(re.compile("^View details"), within=f'main li:has-text("{NOTE}")')
    visitor.wait_for_text(NOTE, within="main")
    visitor.click(re.compile("^Approve"), role="button", within="main")
    visitor.wait_for_text(re.compile("Approved"), within="main")


def operator(visitor: Visitor) -> None:
    """As an operator, find the failed GPU, the silent pool and the drained node from the overview."""
    visitor.press(visitor.page.locator("#to-inbox"))
    for trouble in ("Annex", "sim-003"):
        visitor.click(re.compile("^View|^Open"), within=f'main li:has-text("{trouble}")')
        visitor.wait_for_text(trouble, within="main")
        visitor.click(re.compile("^Inbox"), within="nav")
    # A drain is not in the inbox, since an operator has already decided it: the node's page shows the reason.
    visitor.click("Pools", within="nav")
    visitor.click("Training", within="main")
    visitor.click("sim-007", within="main")
    visitor.wait_for_text(DRAINED_FOR, within="main")
