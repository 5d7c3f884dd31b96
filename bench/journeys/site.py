"""Prepares a running portal for the journeys, through REST and the portal's own commands."""

from __future__ import annotations

import sys
from typing import Any

from tests.instance import Api, Berth, eventually

TEAMS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")
NODES, GPUS = 40, 8
WORKSPACES = 600
SIZE = "training-h100-x1"
MAKE_APPROVER = """
from portal.people.accounts.models import User
User.objects.filter(username="ben").update(is_approver=True)
"""
ADD_PERSON = """
from portal.people.accounts.models import User
if not User.objects.filter(email="mia@example.org").exists():
    User.objects.create_user("mia", email="mia@example.org", email_confirmed=True)
"""
NOTE, DRAINED_FOR = "Training for the paper", "New power supply"


def administrator(berth: Berth) -> Api:
    """Return the REST API as the administrator."""
    return Api(berth, berth.manage("create_token", "admin", "--name", "journeys"))


def add_person(berth: Berth) -> None:
    """Create the account that the team owner invites, unless an earlier journey did."""
    berth.run("manage.py", "shell", "-c", ADD_PERSON)


def request_more(berth: Berth) -> None:
    """Limit a team to one core and request a workspace with two for it; ben approves requests."""
    berth.run("manage.py", "shell", "-c", MAKE_APPROVER)
    admin, ada = administrator(berth), berth.api("ada")
    admin.json("POST", "quotas", {"team": "lab", "resource": "cpu_milli", "quota": 1000})
    order = {"team": "lab", "template": "jupyterlab", "flavor": "cpu-large"}
    answer = ada.ask("POST", "workspaces", order)
    assert answer.status_code >= 400, "the quota does not hold"
    ada.json("POST", "quota-requests", {**answer.json()["ask"], "note": NOTE})


def busy_fleet(berth: Berth, workspaces: int = WORKSPACES) -> None:
    """Add 40 × 8 simulated GPUs, more work than fits, a failed GPU, a silent pool and a drained node."""
    for slug, nodes in (("training", NODES), ("annex", 2)):
        size = ("--nodes", str(nodes), "--gpus", str(GPUS), "--model", "H100")
        faults = ("--set", "fault_xid79=sim-003:2") if slug == "training" else ()
        berth.manage("add_simulated_pool", *size, *faults, "--slug", slug, "--name", slug.capitalize())
    admin = administrator(berth)
    for slug in TEAMS:
        admin.json("POST", "teams", {"slug": slug, "name": slug.capitalize()})
        for person in ("ada", "ben"):
            admin.json("PUT", f"teams/{slug}/members/{person}", {"role": "member"})
    admin.json("POST", "gpu-checks", {"device": _broken(admin)["id"], "level": "quick"})
    eventually(lambda: _broken(admin)["state"] == "failed", limit_s=180, what="the GPU has failed")
    callers = [berth.api(person) for person in ("ada", "ben")]
    for number in range(workspaces):
        team = TEAMS[number % len(TEAMS)]
        callers[number % 2].create("jupyterlab", SIZE, team=team, name=f"{team}-{number}")
        if number % 100 == 99:
            print(f"{number + 1} workspaces", file=sys.stderr, flush=True)
    silent = {"nodes": 2, "gpus": GPUS, "model": "H100", "unavailable": True}
    admin.json("PATCH", "pools/annex", {"config": silent})
    (node,) = [row for row in _all(admin, "nodes?pool=training") if row["name"] == "sim-007"]
    admin.json("POST", f"nodes/{node['id']}/drain", {"note": DRAINED_FOR})


def _broken(api: Api) -> dict[str, Any]:
    """Return the GPU that falls off the bus during a check."""
    rows = _all(api, "devices?pool=training")
    (row,) = [row for row in rows if (row["node"], row["index"]) == ("sim-003", 2)]
    return row


def _all(api: Api, path: str) -> list[dict[str, Any]]:
    """Return all rows of a list, read page by page."""
    rows: list[dict[str, Any]] = []
    url = f"{path}&page_size=100"
    while url:
        page = api.json("GET", url)
        rows += page["results"]
        url = (page["next"] or "").partition("/api/v1/")[2]
    return rows
