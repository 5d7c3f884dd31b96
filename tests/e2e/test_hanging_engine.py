"""An engine whose calls hang delays no other pool of its worker."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from tests import instance
from tests.instance import Api, eventually

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("hanging-engine"),
    pytest.mark.thorough("a Berth of its own; `make test` has the slots in tests/provisioning"),
]
HANGS_MS = 12_000
STARTS = 10


def test_hanging_engine_delays_no_other_pool(tmp_path):
    with (
        instance.running(tmp_path, environment=None) as berth,
        closing(berth.api("ada")) as ada,
        closing(Api(berth, berth.manage("create_token", "admin", "--name", "tests"))) as admin,
    ):
        for slug, more in (("hanging", ("--set", f"call_delay_ms={HANGS_MS}")), ("quick", ())):
            berth.manage("add_simulated_pool", "--nodes", "1", "--slug", slug, *more)
        stuck = [
            ada.create("jupyterlab", "hanging-h100-x1", name=f"stuck-{number}")["id"] for number in range(3)
        ]
        took = []
        for number in range(STARTS):
            began = time.monotonic()
            made = ada.create("jupyterlab", "quick-h100-x1", name=f"quick-{number}")
            ada.wait(made["id"], "running")
            took.append(time.monotonic() - began)
            ada.act(made["id"], "delete")
        print("start to running, s:", *(f"{seconds:.1f}" for seconds in took))
        assert all(ada.workspace(key)["state"] == "provisioning" for key in stuck)
        # A changed configuration is tried at once.
        admin.json("PATCH", "pools/hanging", {"config": {"nodes": 1, "gpus": 8, "model": "H100"}})
        eventually(
            lambda: all(ada.workspace(key)["state"] == "running" for key in stuck),
            limit_s=120,
            what="the workspaces of the pool that hung run",
        )
