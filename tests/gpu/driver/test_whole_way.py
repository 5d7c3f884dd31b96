"""An instance with fake NVML in C: from an XID to the notices of users, and open GPUs of its processes.

Prints how long notices take; results are in docs/measurements.md.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from provisioning.gpu.reset_run import holders_of
from tests.gpu.driver.machine import Machine
from tests.gpu.driver.whole_instance import LIMIT_S, running
from tests.instance import Api, Berth, eventually

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("gpu-whole-way"),
    pytest.mark.thorough("a Berth of its own; `make test` has node and portal apart"),
]
# Each recommends more than the previous one, so that it has its own history entry.
ORDER = ((92, "inspect"), (62, "reset"), (95, "drain_and_reset"), (79, "reboot"), (64, "replace"))
PROGRAM = 31
CATALOG = """
Flavor.objects.create(slug="one-gpu", name="One GPU", cpu_milli=100, memory_mib=256, accelerator_count=1)
"""


@pytest.fixture(scope="module")
def berth(host: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Berth]:
    with running(host, tmp_path_factory.mktemp("whole") / "berth", CATALOG) as found:
        yield found


@pytest.fixture
def api(berth: Berth) -> Iterator[Api]:
    found = berth.api("ada")
    yield found
    found.close()


def last_xid(berth: Berth) -> float | None:
    """The last XID of the GPU in the metrics."""
    headers = {"Authorization": f"Bearer {berth.tokens['ada']}"}
    text = httpx.get(f"http://127.0.0.1:{berth.port}/metrics/gpus", headers=headers, timeout=20).text
    lines = [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_XID_ERRORS{")]
    return float(lines[0].rpartition(" ")[2]) if lines else None


def cordons(berth: Berth, number: int) -> list[tuple[datetime, str]]:
    """Time and recovery of each cordon by an XID."""
    found = berth.rows(
        "SELECT at, data FROM events_event WHERE kind = 'device.cordoned' AND instr(message, ?) ORDER BY id",
        f"XID {number}:",
    )
    return [(utc(row["at"]), row["data"]) for row in found]


def notices(berth: Berth) -> list[tuple[datetime, str, str, str]]:
    """Notices of the GPU's holder: time, user, text, URL."""
    found = berth.rows(
        "SELECT at, username, body, url FROM events_notification JOIN accounts_user u ON u.id = user_id"
        " WHERE kind = 'workspace.device_error'"
    )
    return [(utc(row["at"]), row["username"], row["body"], row["url"]) for row in found]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_xid_cordons_the_gpu_and_notifies_its_user(
    host: Machine, berth: Berth, api: Api, record_property: Callable[[str, object], None]
) -> None:
    workspace = api.create("files", "one-gpu")["id"]
    api.wait(workspace, "running", limit_s=LIMIT_S)
    host.is_watched()

    # An application XID, which has no consequence.
    host.xid(PROGRAM, log=False)
    eventually(lambda: last_xid(berth) == PROGRAM, limit_s=LIMIT_S, what="the node has seen it")
    assert notices(berth) == [] and cordons(berth, PROGRAM) == []
    assert [row["cordoned"] for row in berth.rows("SELECT cordoned FROM inventory_device")] == [0]

    took_s = []
    for number, action in ORDER:
        happened = time.time()
        host.xid(number, log=False)
        ((at, data),) = eventually(
            lambda number=number: cordons(berth, number) or None, limit_s=LIMIT_S, what=berth.last_lines
        )
        took_s.append(round(at.timestamp() - happened, 3))
        (device,) = berth.rows("SELECT cordoned, cordon_cause, cordon_reason, recovery FROM inventory_device")
        assert tuple(device)[:2] == (1, "check") and device["recovery"] == action, data
        assert device["cordon_reason"].startswith(f"XID {number}:")
        # Notified once, about the first.
        ((told_at, recipient, body, url),) = notices(berth)
        assert recipient == "ada" and f"XID {ORDER[0][0]}:" in body and url == f"/workspaces/{workspace}/"
        if number == ORDER[0][0]:
            notice_s = round(told_at.timestamp() - happened, 3)
    record_property("xid_to_notice_s", notice_s)
    record_property("xid_to_cordon_s", took_s)
    print("seconds from an XID to the holder's notice:", notice_s, "and to the cordon:", took_s)
    # The workspace keeps running as long as possible.
    assert api.workspace(workspace)["state"] == "running"


def children(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_restarted_pool_process_has_no_gpu_open(host: Machine, berth: Berth) -> None:
    """Otherwise no GPU could be reset until the worker restarts."""
    worker = berth.services()["node"]["pid"]
    device = host.root / "dev/nvidia0"

    def only_the_worker() -> bool:
        return holders_of(device) == (worker,)

    eventually(only_the_worker, limit_s=LIMIT_S, what=lambda: str(holders_of(device)))
    before = children(worker)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(children(worker) - before) == len(before), limit_s=LIMIT_S, what=berth.last_lines)
    # The sampler and the watcher take it up again; an inventory may have it open for a moment.
    eventually(only_the_worker, limit_s=LIMIT_S, what=lambda: str(holders_of(device)))
