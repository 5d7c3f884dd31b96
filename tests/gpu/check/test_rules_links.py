"""Links to other GPUs and nodes, and models without a datasheet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioning.gpu.check import thresholds
from provisioning.gpu.check.assess import THIRD_NODE, assess
from provisioning.gpu.check.plan import PAIR_DEADLINE_S, WITH_PEERS, Test, plan_for
from provisioning.gpu.check.types import Action, Facts, Level, Raw, Rendezvous, Status, Verdict
from provisioning.gpu.check.verdict import decide, of_tests
from tests.gpu.check.judging import COPY, H200, done, status_of


def test_unknown_model_is_judged_by_the_fleet_baseline() -> None:
    new = Facts("GPU-1", name="NVIDIA GH200 480GB")
    status, text = status_of(COPY, done(copy_gb_s=3600.0), new)
    assert status == Status.WARNED and "no datasheet limit for NVIDIA GH200 480GB" in text
    for value, expected in ((3600.0, Status.PASSED), (3000.0, Status.FAILED)):
        assert status_of(COPY, done(copy_gb_s=value), new, baseline={"copy_gb_s": 3650.0})[0] == expected


@pytest.mark.parametrize(
    ("metric", "name", "lacks"),
    [
        ("copy_gb_s", "NVIDIA GH200 480GB", True),
        ("gemm_bf16_tflops", "NVIDIA H200 NVL", True),
        ("gemm_bf16_own_tflops", "NVIDIA H200 NVL", True),
        ("copy_gb_s", "NVIDIA H200", False),
        ("gemm_bf16_tflops", "NVIDIA H200", False),
        ("copy_gb_s", "NVIDIA A10G", False),
        ("gemm_bf16_tflops", "NVIDIA A10G", True),
        ("gemm_fp8_tflops", "NVIDIA A100-SXM4-80GB", True),
        # Judged by other rules, or not judged.
        ("to_host_gb_s", "NVIDIA GH200 480GB", False),
        ("peer_gb_s:GPU-2", "NVIDIA GH200 480GB", False),
        ("between_nodes_gb_s", "NVIDIA GH200 480GB", False),
        ("free_mib", "NVIDIA GH200 480GB", False),
    ],
)
def test_values_without_datasheet(metric: str, name: str, lacks: bool) -> None:
    assert thresholds.lacks_datasheet(metric, name) is lacks


@pytest.mark.parametrize(
    ("second", "third", "fourth", "status"),
    [
        (300.0, 300.0, 300.0, Status.FAILED),
        (300.0, 400.0, 300.0, Status.WARNED),
        (400.0, 300.0, 400.0, Status.WARNED),
        # A slightly slow link is no evidence against this end.
        (300.0, 350.0, 400.0, Status.WARNED),
        (400.0, 400.0, 400.0, Status.PASSED),
        (350.0, 400.0, 400.0, Status.WARNED),
    ],
)
def test_slow_links_only_warn_if_another_link_is_fast(
    second: float, third: float, fourth: float, status: Status
) -> None:
    linked = Facts("GPU-1", links={"GPU-2": 18, "GPU-3": 18, "GPU-4": 18}, compute_capability=(9, 0))
    figures = {"peer_gb_s:GPU-2": second, "peer_gb_s:GPU-3": third, "peer_gb_s:GPU-4": fourth}
    found, text = status_of(Test("peers", "peers", 1.0), Raw("x", "done", 0, figures), linked)
    assert found == status
    if second == 300.0 and found == Status.WARNED:
        assert text.startswith("peer_gb_s:GPU-2 300 GB/s is below the link limit of 337.5")
        assert text.endswith("Check the other end of this link first")


def test_peer_without_nvlink_does_not_exonerate_others() -> None:
    linked = Facts("GPU-1", links={"GPU-2": 18}, compute_capability=(9, 0))
    figures = {"peer_gb_s:GPU-2": 300.0, "peer_gb_s:GPU-3": 4.0}
    assert status_of(Test("peers", "peers", 1.0), Raw("x", "done", 0, figures), linked)[0] == Status.FAILED


def test_wrong_words_fail_at_any_speed() -> None:
    linked = Facts("GPU-1", links={"GPU-2": 18, "GPU-3": 18}, compute_capability=(9, 0))
    figures = {"peer_gb_s:GPU-2": 300.0, "peer_gb_s:GPU-3": 400.0}
    assert status_of(Test("peers", "peers", 1.0), Raw("x", "done", 2, figures), linked)[0] == Status.FAILED


def test_peers_named_by_the_portal_are_optional() -> None:
    named = plan_for(Level.STANDARD, H200, ("GPU-2",), peers_required=False)
    asked = plan_for(Level.STANDARD, H200, ("GPU-2",))
    assert [test.required for test in named if test.probe == "peers"] == [False]
    assert [test.required for test in asked if test.probe == "peers"] == [True]
    assert all(test.required for test in named if test.probe not in WITH_PEERS)


# --- the link between two nodes ---

MEETING = Rendezvous(1, "192.0.2.11", 29400, "node-a", port_gb_s=50.0)
TWO_NODES = plan_for(Level.STANDARD, Facts("GPU-1"), meeting=MEETING)[1]


def test_plan_of_a_link_check_tests_only_the_link() -> None:
    """Its deadline exceeds the wait for the other end, so waiting is not reported as a hang."""
    plan = plan_for(Level.EXTENDED, Facts("GPU-1"), ("GPU-2",), meeting=MEETING)
    assert [(each.name, each.probe, each.required, each.deadline_s) for each in plan] == [
        ("canary", "canary", True, 15.0), ("two_nodes", "two_nodes", True, 540.0),
    ]  # fmt: skip
    assert dict(plan[1].params) == {
        "rank": 1, "address": "192.0.2.11", "port": 29400, "partner": "node-a", "transport": "rdma",
        "port_gb_s": 50.0, "meet_s": 150.0, "silent_s": 30.0,
    }  # fmt: skip
    assert PAIR_DEADLINE_S == 480.0


@pytest.mark.parametrize(
    ("figure", "status"),
    [(50.0, Status.PASSED), (25.0, Status.PASSED), (24.9, Status.WARNED), (0.1, Status.WARNED)],
)
def test_link_to_another_node_never_fails_the_device(figure: float, status: Status) -> None:
    found, text = status_of(TWO_NODES, done(between_nodes_gb_s=figure), H200)
    assert found == status and "with node-a over RDMA" in text
    assert (THIRD_NODE in text) is (status == Status.WARNED)


def test_unknown_port_reports_the_value_only() -> None:
    test = replace(TWO_NODES, params={**TWO_NODES.params, "port_gb_s": 0.0, "transport": "socket"})
    found = assess(test, done(between_nodes_gb_s=0.1), H200)
    assert (found.status, found.judgements[0].advisory) == (Status.PASSED, True)
    assert "with node-a over sockets" in found.text
    third = replace(test, params={**test.params, "port_gb_s": 100 / 3})
    assert assess(third, done(between_nodes_gb_s=0.1), H200).judgements[0].warn_below == 16.667
    nameless = replace(test, params={**test.params, "partner": ""})
    assert "with the other node over" in status_of(nameless, done(between_nodes_gb_s=0.1), H200)[1]


def test_wrong_words_warn_about_the_link_and_a_missed_canary_fails_the_device() -> None:
    found = assess(TWO_NODES, Raw("x", "done", 3, {"between_nodes_gb_s": 50.0}), H200)
    assert found.status == Status.WARNED and found.text.startswith("3 wrong words in sums with node-a. ")
    assert decide(of_tests([found]), [found], simulated=False) == (Verdict.DEGRADED, Action.INSPECT)
    missed = assess(Test("canary", "canary", 1.0), Raw("x", "done", 1, detail={"missed": ["x"]}), H200)
    assert missed.status == Status.FAILED


@pytest.mark.parametrize(
    "raw",
    [
        Raw("x", "skipped", reason="Could not connect to node-a."),
        Raw("x", "done", 0),
        Raw("x", "done", None, {"between_nodes_gb_s": 50.0}),
    ],
    ids=["no partner", "no figure", "nothing compared"],
)
def test_skipped_link_test_is_inconclusive(raw: Raw) -> None:
    found = assess(TWO_NODES, raw, H200)
    assert found.status == Status.SKIPPED
    assert decide(of_tests([found]), [found], simulated=False) == (Verdict.INCONCLUSIVE, Action.RETRY)


def test_meeting_address_has_the_nccl_format() -> None:
    assert MEETING.address_text == "192.0.2.11:29400"
    assert replace(MEETING, address="2001:db8::1").address_text == "[2001:db8::1]:29400"
