"""Links to other GPUs, and models without a datasheet: what a check makes of their figures."""

from __future__ import annotations

import pytest

from provisioning.gpu.check import thresholds
from provisioning.gpu.check.plan import WITH_PEERS, Test, plan_for
from provisioning.gpu.check.types import Facts, Level, Raw, Status
from tests.gpu.check.test_rules import COPY, H200, done, status_of


def test_a_new_model_is_judged_by_what_its_fleet_agrees_on() -> None:
    new = Facts("GPU-1", name="NVIDIA GH200 480GB")
    status, text = status_of(COPY, done(copy_gb_s=3600.0), new)
    assert status == Status.MEASURED and "no floor is known for NVIDIA GH200 480GB" in text
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
        # Judged otherwise, or not at all.
        ("to_host_gb_s", "NVIDIA GH200 480GB", False),
        ("peer_gb_s:GPU-2", "NVIDIA GH200 480GB", False),
        ("free_mib", "NVIDIA GH200 480GB", False),
    ],
)
def test_which_figures_no_datasheet_has(metric: str, name: str, lacks: bool) -> None:
    assert thresholds.lacks_datasheet(metric, name) is lacks


@pytest.mark.parametrize(
    ("second", "third", "fourth", "status"),
    [
        (300.0, 300.0, 300.0, Status.FAILED),
        (300.0, 400.0, 300.0, Status.WARNED),
        (400.0, 300.0, 400.0, Status.WARNED),
        # One that is only somewhat slow is no proof against this end.
        (300.0, 350.0, 400.0, Status.WARNED),
        (400.0, 400.0, 400.0, Status.PASSED),
        (350.0, 400.0, 400.0, Status.WARNED),
    ],
)
def test_a_link_has_two_ends(second: float, third: float, fourth: float, status: Status) -> None:
    linked = Facts("GPU-1", links={"GPU-2": 18, "GPU-3": 18, "GPU-4": 18}, compute_capability=(9, 0))
    figures = {"peer_gb_s:GPU-2": second, "peer_gb_s:GPU-3": third, "peer_gb_s:GPU-4": fourth}
    found, text = status_of(Test("peers", "peers", 1.0), Raw("x", "done", 0, figures), linked)
    assert found == status
    if second == 300.0 and found == Status.WARNED:
        assert text.startswith("peer_gb_s:GPU-2 300 GB/s is below 337.5")
        assert text.endswith("look at the other end of this first")


def test_a_peer_without_a_link_is_no_proof_for_the_others() -> None:
    linked = Facts("GPU-1", links={"GPU-2": 18}, compute_capability=(9, 0))
    figures = {"peer_gb_s:GPU-2": 300.0, "peer_gb_s:GPU-3": 4.0}
    assert status_of(Test("peers", "peers", 1.0), Raw("x", "done", 0, figures), linked)[0] == Status.FAILED


def test_wrong_words_fail_whatever_the_figures() -> None:
    linked = Facts("GPU-1", links={"GPU-2": 18, "GPU-3": 18}, compute_capability=(9, 0))
    figures = {"peer_gb_s:GPU-2": 300.0, "peer_gb_s:GPU-3": 400.0}
    assert status_of(Test("peers", "peers", 1.0), Raw("x", "done", 2, figures), linked)[0] == Status.FAILED


def test_peers_that_the_portal_names_are_not_required() -> None:
    named = plan_for(Level.STANDARD, H200, ("GPU-2",), peers_required=False)
    asked = plan_for(Level.STANDARD, H200, ("GPU-2",))
    assert [test.required for test in named if test.probe == "peers"] == [False]
    assert [test.required for test in asked if test.probe == "peers"] == [True]
    assert all(test.required for test in named if test.probe not in WITH_PEERS)
