"""`berth gpu check`: locally without a GPU, and through the portal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from portal.fleet.inventory.models import Device, Pool
from provisioning.node.sampling import has_library
from tests.broker import Broker
from tests.factories import make_token, node_info
from tests.gpu_checks.helpers import answer, checked_pool, commands

without_driver = pytest.mark.skipif(has_library(), reason="this machine has an NVIDIA driver")


@without_driver
def test_check_without_a_driver_names_the_library_and_the_fix(berth: Any) -> None:
    ran = berth("gpu", "check")
    assert ran.code == 4
    assert "libnvidia-ml.so.1" in ran.err and "install the NVIDIA driver" in ran.err


@without_driver
def test_device_check_without_a_driver_names_the_library_and_the_fix(berth: Any) -> None:
    ran = berth("gpu", "check", "--uuid", "GPU-1", "--json")
    assert ran.code == 4
    assert ran.json["unavailable"]["library"] == "libnvidia-ml.so.1" and ran.json["unavailable"]["fix"]
    assert ran.json["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    "wrong", [("--uuid", "1"), ("--level", "deep"), ("--uuid", "GPU-1", "--device", "GPU-1"), ("--what",),
     ("--with", "node-2"), ("--node", "node-1", "--with", "node-2", "--uuid", "GPU-1")],
)  # fmt: skip
def test_invalid_usage_exits_with_64(berth: Any, wrong: tuple[str, ...]) -> None:
    assert berth("gpu", "check", *wrong).code == 64


@pytest.fixture
def as_olga(
    berth: Any, server: str, olga: Any, monkeypatch: pytest.MonkeyPatch, catalog: None
) -> Callable[..., Any]:
    checked_pool(node_info(gpus=1))
    monkeypatch.setenv("BERTH_URL", server)
    monkeypatch.setenv("BERTH_TOKEN", make_token(olga)[1])
    return berth


@pytest.mark.parametrize(
    ("wrong", "code", "word"), [((), 0, "PASS"), (("slow_memory",), 1, "DEGRADED"), (("xid79",), 2, "FAIL")]
)
def test_verdict_of_a_check_through_the_portal_is_the_exit_code(
    as_olga: Any, sent: Broker, wrong: tuple[str, ...], code: int, word: str
) -> None:
    uuid = Device.objects.get().uuid

    def node() -> None:
        try:
            for _ in range(200):
                for command in commands(sent):
                    answer(command, *wrong)
                    return
                time.sleep(0.05)
        finally:
            connection.close()

    thread = threading.Thread(target=node)
    thread.start()
    ran = as_olga("gpu", "check", "--device", uuid, "--timeout", "20")
    thread.join(20)
    assert ran.code == code, ran.err
    assert ran.out.startswith(f"{uuid}  quick  {word}: ")
    assert ("recovery: " in ran.out) is (code > 0)


def test_link_check_has_one_verdict_for_both_nodes(
    berth: Any,
    server: str,
    olga: Any,
    monkeypatch: pytest.MonkeyPatch,
    catalog: None,
    sent: Broker,
    settings: Any,
) -> None:
    """The command also waits for the other end."""
    settings.BERTH_NODES_ADDRESS = "192.0.2.11"
    pool = checked_pool(*(node_info(f"node-{each}", gpus=1, provides=("rdma",)) for each in (1, 2)))
    Pool.objects.update(config={**pool.config, "node": "node-1"})
    Device.objects.update(passed_at=timezone.now())
    monkeypatch.setenv("BERTH_URL", server)
    monkeypatch.setenv("BERTH_TOKEN", make_token(olga)[1])

    def nodes() -> None:
        try:
            found: list[Any] = []
            for _ in range(200):
                found += commands(sent)
                if len(found) == 2:
                    break
                time.sleep(0.05)
            first, second = sorted(found, key=lambda each: each.meeting.rank)
            answer(first)
            answer(second, verdict="degraded", exit_code=1, action="inspect", summary="3 wrong words.")
        finally:
            connection.close()

    thread = threading.Thread(target=nodes)
    thread.start()
    ran = berth("gpu", "check", "--node", "node-1", "--with", "node-2", "--timeout", "30")
    thread.join(30)
    assert ran.code == 1, ran.err
    assert ran.out.startswith(
        "node-1 – node-2  GPU-node-1-0  DEGRADED: This end passed. The other end, node-2, reported:"
    )


def test_unknown_node_is_reported(as_olga: Any) -> None:
    ran = as_olga("gpu", "check", "--node", "node-1", "--with", "nowhere")
    assert ran.code == 69 and "No node is named 'nowhere'." in ran.err


def test_unknown_device_is_reported(as_olga: Any) -> None:
    ran = as_olga("gpu", "check", "--device", "GPU-none")
    assert ran.code == 69 and "Device not found." in ran.err


def test_check_continues_after_the_timeout(as_olga: Any, sent: Broker) -> None:
    ran = as_olga("gpu", "check", "--device", Device.objects.get().uuid, "--timeout", "1")
    assert ran.code == 75 and "The check continues" in ran.err
