"""Two users share one GPU of an instance with fake NVML in C; each is limited to its half."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from provisioning.drivers.local import processes
from provisioning.types import external_name
from tests.gpu.driver.machine import GPU, Machine
from tests.gpu.driver.whole_instance import LIMIT_S, running
from tests.instance import Api, Berth, eventually
from tests.provisioning.local.local_support import PROBE

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("gpu-shares"),
    pytest.mark.thorough("a Berth of its own; `make test` has node and portal apart"),
]
CATALOG = f"""
Flavor.objects.create(
    slug="half", name="Half a GPU", cpu_milli=100, memory_mib=256, accelerator_count=1, accelerator_milli=500
)
Template.objects.create(
    slug="probe", name="Probe", program="bash", argv=["python3", "-c", {PROBE!r}, "{{port}}"], ready_path="/",
    open_path="/", start_timeout_s=60, stop_timeout_s=2, position=901,
)
"""
# Ignores the request to end, like a kernel during a cell.
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"


@pytest.fixture(scope="module")
def berth(host: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Berth]:
    with running(host, tmp_path_factory.mktemp("shares") / "berth", CATALOG) as found:
        yield found


def evaluate(berth: Berth, user: str, workspace: str, expression: str) -> Any:
    """The value of an expression in the user's workspace."""
    answer = httpx.get(
        f"http://127.0.0.1:{berth.port}/?{quote(expression)}",
        headers={"Host": berth.host(workspace), "Authorization": f"Bearer {berth.tokens[user]}"},
        timeout=20,
    )
    return answer.raise_for_status().json()


def child_of_app(berth: Berth, user: str, workspace: str) -> int:
    """The PID of a process started by the app, on the machine."""
    number = evaluate(
        berth, user, workspace, f"__import__('subprocess').Popen([sys.executable, '-c', {STUBBORN!r}]).pid"
    )

    def look() -> int | None:
        its = berth.owned(external_name(workspace))
        found = [each.pid for each in its if processes.numbers_of(each.pid)[-1:] == (number,)]
        return found[0] if found else None

    return eventually(look, limit_s=LIMIT_S, what="the process")


def test_two_gpu_shares_stay_within_their_memory(host: Machine, berth: Berth) -> None:
    ada, ben = berth.api("ada"), berth.api("ben")
    try:
        _two_halves(host, berth, ada, ben)
    finally:
        ada.close()
        ben.close()


def _two_halves(host: Machine, berth: Berth, ada: Api, ben: Api) -> None:
    hers, his = (api.create("probe", "half")["id"] for api in (ada, ben))
    for api, workspace in ((ada, hers), (ben, his)):
        api.wait(workspace, "running", limit_s=LIMIT_S)
    held = berth.rows("SELECT milli, device_id FROM inventory_allocateddevice WHERE active")
    assert [row["milli"] for row in held] == [500, 500] and len({row["device_id"] for row in held}) == 1
    greedy, small = child_of_app(berth, "ada", hers), child_of_app(berth, "ada", hers)
    modest = child_of_app(berth, "ben", his)

    host.holds(GPU, {greedy: 45_000, small: 2_000, modest: 30_000})
    (over,) = eventually(
        lambda: ada.workspace(hers)["gpu_overuse"] or None, limit_s=LIMIT_S, what=berth.last_lines
    )
    assert (over["code"], over["used_mib"], over["part_mib"]) == ("gpu_share_over", 47_000, 40_779)
    eventually(lambda: processes.start_ticks(greedy) is None, limit_s=LIMIT_S, what=berth.last_lines)
    host.holds(GPU, {small: 2_000, modest: 30_000})

    assert processes.start_ticks(small) is not None and processes.start_ticks(modest) is not None
    for api, workspace in ((ada, hers), (ben, his)):
        assert api.workspace(workspace)["state"] == "running"
    assert evaluate(berth, "ada", hers, "1 + 1") == 2, "her app goes on"

    eventually(lambda: ada.workspace(hers)["gpu_overuse"] == [], limit_s=LIMIT_S, what=berth.last_lines)
    steps = berth.rows("SELECT kind FROM events_event WHERE kind LIKE 'workspace.gpu_share%' ORDER BY id")
    assert [row["kind"].removeprefix("workspace.gpu_share_") for row in steps] == [
        "over", "ended", "ended", "back",
    ]  # fmt: skip
    told = berth.rows(
        "SELECT username, url FROM events_notification JOIN accounts_user u ON u.id = user_id"
        " WHERE kind = 'workspace.gpu_share'"
    )
    assert [tuple(row) for row in told] == [("ada", f"/workspaces/{hers}/")] * 3
