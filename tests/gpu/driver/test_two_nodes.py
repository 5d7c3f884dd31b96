"""The link check between two nodes in real processes: one fake machine per node, NCCL between them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from provisioning.gpu.check import meeting_env
from provisioning.gpu.check import verdict as judging
from provisioning.gpu.check.__main__ import main
from provisioning.gpu.check.assess import THIRD_NODE
from provisioning.gpu.check.compiler import nvrtc_version
from provisioning.gpu.check.report import schema
from provisioning.gpu.check.types import EXIT_USAGE, Action, Finding, Rendezvous, Severity
from provisioning.gpu.host import RdmaPort
from tests.gpu.check.host_build import host_build
from tests.gpu.driver.machine import GPU, KINDS, ROOT, Machine, line_of
from tests.ports import free_port
from tests.suite.choice import sample

pytestmark = [pytest.mark.engine, pytest.mark.apart]
VALIDATOR = Draft202012Validator(schema())
NODES = ("node-a", "node-b")
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def machines(libraries: dict[int, Path], tmp_path: Path) -> Iterator[list[Machine]]:
    """Two nodes with an H100 each, under two driver branches."""
    if not nvrtc_version():
        pytest.skip("cuda-bindings or NVRTC is not installed")
    made = []
    for name, release in zip(NODES, (570, 580), strict=True):
        one = Machine.at(tmp_path / name, libraries[release], release, KINDS["H100"])
        shutil.copy(host_build(), one.folder / "kernels.so")
        made.append(one)
    yield made
    for one in made:
        one.end()


@pytest.fixture
def start(machines: list[Machine]) -> Start:
    """Start an end as a process on its machine."""
    port = free_port()

    def begin(rank: int, **more: Any) -> subprocess.Popen[str]:
        machine = machines[rank]
        turns = machine.folder / "turns"
        turns.mkdir(exist_ok=True)
        order = {
            "uuid": GPU, "turns": str(turns), "rank": rank, "address": "127.0.0.1", "port": port,
            "partner": NODES[1 - rank], "meet_s": 60.0, "silent_s": 60.0, **more,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.driver.link_end", json.dumps(order)],
            env={**os.environ, "LD_LIBRARY_PATH": str(machine.folder)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        machine.processes.append(process)
        return process

    return begin


def until(process: subprocess.Popen[str], phase: str, test: str = "") -> dict[str, Any]:
    """The first line of this phase, optionally of the named test."""
    while line := line_of(process):
        if line["phase"] == phase and test in ("", line.get("test")):
            return line
    raise AssertionError(f"it ended without {phase} {test}")


def report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    report = until(process, "report")["report"]
    assert [error.message for error in VALIDATOR.iter_errors(report)] == []
    return dict(report)


def sums_of(report: dict[str, Any]) -> dict[str, Any]:
    """The report's link test."""
    return next(test for test in report["tests"] if test["name"] == "two_nodes")


def verdict_and_action(report: dict[str, Any]) -> tuple[str, str]:
    """Verdict and action, ignoring that NVML may not have been read during so short a run."""
    kept = [Finding(**finding) for finding in report["findings"] if finding["code"] != "unwatched"]
    kept = [replace(each, severity=Severity(each.severity), action=Action(each.action)) for each in kept]
    verdict, action = judging.decide(kept, report["tests"], simulated=False)
    return verdict.value, action.value


def fails_no_device(report: dict[str, Any]) -> bool:
    """Whether no finding fails a device."""
    return report["verdict"] in ("pass", "degraded", "inconclusive") and not {
        finding["severity"] for finding in report["findings"]
    } & {"fail", "hung"}


@pytest.mark.parametrize("first", sample([0, 1], 2, "the rows take the same path"))
def test_correct_sums_pass_at_both_ends(start: Start, first: int) -> None:
    """The first end waits for the other."""
    early = start(first)
    until(early, "start", "two_nodes")
    late = start(1 - first)
    for process, rank in ((early, first), (late, 1 - first)):
        report = report_of(process)
        test = sums_of(report)
        assert (verdict_and_action(report), test["errors"]) == (("pass", "none"), 0), report["summary"]
        assert test["status"] == "passed"
        assert test["measures"]["between_nodes_gb_s"] > 0
        assert test["detail"]["nccl"].startswith("nccl 2.") and test["detail"]["transport"] == "rdma"
        assert f"with {NODES[1 - rank]} over RDMA" in test["text"]


@pytest.mark.thorough("two processes each; `make test` has right sums")
@pytest.mark.parametrize("wrong", [0, 1])
def test_wrong_bit_at_one_end_is_reported_and_fails_no_device(
    machines: list[Machine], start: Start, wrong: int
) -> None:
    machines[wrong].fault("sum", 5, 1 << 3)
    ends = [start(0), start(1)]
    for rank, process in enumerate(ends):
        report = report_of(process)
        test = sums_of(report)
        assert fails_no_device(report)
        if rank != wrong:
            assert (verdict_and_action(report), test["errors"]) == (("pass", "none"), 0), report["summary"]
            continue
        # Each of three sums, and the last of many.
        assert (verdict_and_action(report), test["errors"]) == (("degraded", "inspect"), 4)
        assert NODES[1 - rank] in test["text"] and THIRD_NODE in test["text"]
        assert test["detail"]["first_index"] == "2" and test["detail"]["wrong_bits"] == f"{8 << 32:016x}"


def test_slow_link_is_reported_and_fails_no_device(start: Start) -> None:
    ends = [start(rank, port_gb_s=1e9) for rank in (0, 1)]
    for process in ends:
        report = report_of(process)
        assert verdict_and_action(report) == ("degraded", "inspect") and fails_no_device(report)
        assert THIRD_NODE in sums_of(report)["text"]
        (judged,) = sums_of(report)["judgements"]
        assert (judged["against"], judged["fail_below"], judged["warn_below"]) == ("link", None, 5e8)


@pytest.mark.parametrize("rank", sample([0, 1], 2, "the rows take the same path"))
def test_missing_partner_is_inconclusive(start: Start, rank: int) -> None:
    report = report_of(start(rank, meet_s=2.0))
    assert (report["verdict"], report["action"], fails_no_device(report)) == ("inconclusive", "retry", True)
    assert f"Could not connect to {NODES[1 - rank]} at 127.0.0.1, port" in sums_of(report)["text"]
    assert not report["abandoned"]


@pytest.mark.parametrize("rank", sample([0, 1], 2, "the rows take the same path"))
def test_killed_partner_is_inconclusive(machines: list[Machine], start: Start, rank: int) -> None:
    """Both are connected, and one does not complete its first sum."""
    machines[1 - rank].fault("sum_hangs")
    ends = [start(0), start(1)]
    for end in ends:
        until(end, "beat", "two_nodes")
    ends[1 - rank].send_signal(signal.SIGKILL)
    report = report_of(ends[rank])
    assert (report["verdict"], fails_no_device(report)) == ("inconclusive", True), report["summary"]
    assert f"Lost the connection to {NODES[1 - rank]}" in sums_of(report)["text"]
    assert not report["abandoned"]


@pytest.mark.thorough("`make test` has a partner that never comes")
def test_hanging_partner_is_inconclusive(machines: list[Machine], start: Start) -> None:
    machines[1].fault("sum_hangs")
    ends = [start(0, silent_s=2.0), start(1)]
    report = report_of(ends[0])
    assert (report["verdict"], fails_no_device(report)) == ("inconclusive", True)
    assert "Lost contact with node-b" in sums_of(report)["text"] and not report["abandoned"]


def test_node_without_nccl_is_reported(machines: list[Machine], start: Start) -> None:
    (machines[0].folder / "libnccl.so.2").write_bytes(b"")
    report = report_of(start(0))
    assert report["verdict"] == "inconclusive"
    assert "NCCL (libnccl.so.2) is not installed on this node" in sums_of(report)["text"]


def test_port_in_use_is_inconclusive(start: Start) -> None:
    """Rank 0 cannot listen."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        report = report_of(start(0, port=other.getsockname()[1], meet_s=30.0))
    assert (report["verdict"], fails_no_device(report)) == ("inconclusive", True)
    assert "Could not connect to node-b" in sums_of(report)["text"]


def test_device_fault_fails_the_device(machines: list[Machine], start: Start) -> None:
    machines[0].fault("lost")
    report = report_of(start(0, meet_s=2.0))
    assert (report["verdict"], report["action"]) == ("fail", "reboot")


# --- NCCL settings, and the command on a node -----------------------------------------------------


def test_no_fallback_from_rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    told = meeting_env.meeting_environ(Rendezvous(1, "2001:db8::1", 29400))
    assert told["NCCL_NET"] == "IB" and told["NCCL_COMM_ID"] == "[2001:db8::1]:29400"
    assert told["NCCL_SOCKET_IFNAME"] == "eth1" and "NCCL_PROTO" not in told
    assert (
        meeting_env.meeting_environ(Rendezvous(1, "192.0.2.1", 1, transport="socket"))["NCCL_NET"] == "Socket"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--meet", "192.0.2.1:29400"), "--meet and --rank must be used together"),
        (("--meet", "192.0.2.1", "--rank", "0"), "--meet must be ADDRESS:PORT"),
        (("--meet", "192.0.2.1:99999", "--rank", "0"), "--meet must be ADDRESS:PORT"),
        (("--meet", "192.0.2.1:29400", "--rank", "0"), "no RDMA port of this node is up"),
    ],
)
def test_command_refuses_invalid_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr("provisioning.gpu.check.__main__.rdma_ports", lambda: ())
    with pytest.raises(SystemExit) as left:
        main(["--uuid", GPU, *words])
    assert left.value.code == EXIT_USAGE and said in capsys.readouterr().err


def test_command_passes_the_meeting_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(uuid: str, level: str, **more: Any) -> Any:
        asked.append(more["meeting"])
        raise KeyboardInterrupt

    ports = (
        RdmaPort("mlx5_0", 1, True, "active", "InfiniBand", 400_000, "", 0),
        RdmaPort("mlx5_1", 1, True, "active", "Ethernet", 100_000, "", 0),
        RdmaPort("mlx5_2", 1, False, "down", "Ethernet", 10_000, "", 0),
    )
    monkeypatch.setattr("provisioning.gpu.check.__main__.rdma_ports", lambda: ports)
    monkeypatch.setattr("provisioning.gpu.check.__main__.run_check", run)
    with pytest.raises(KeyboardInterrupt):
        main(["--uuid", GPU, "--meet", "[2001:db8::1]:29400", "--rank", "1", "--with", "node-a"])
    assert asked == [Rendezvous(1, "2001:db8::1", 29400, "node-a", "rdma", 12.5)]
