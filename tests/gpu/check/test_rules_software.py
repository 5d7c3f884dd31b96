"""Baselines are valid only for the software they were measured with."""

from __future__ import annotations

import pytest

from provisioning.gpu.check.report import software_key
from provisioning.gpu.check.thresholds import comparable


@pytest.mark.parametrize(
    ("baseline_of", "software", "holds"),
    [("", "", True), ("", "a", True), ("a", "a", True), ("a", "b", False), ("a", "", False)],
)
def test_baseline_is_valid_for_its_software_only(baseline_of: str, software: str, holds: bool) -> None:
    assert comparable(baseline_of, software) is holds


def test_driver_and_each_library_are_part_of_the_key() -> None:
    software = {"kernels": "nvrtc 13.5", "blas": "cublas 13.1"}
    key = software_key("580.10", software)
    assert key == "580.10; nvrtc 13.5; cublas 13.1"
    assert software_key("580.11", software) != key
    assert software_key("580.10", software | {"kernels": "packaged"}) != key
    assert software_key("580.10", software | {"blas": "own kernels"}) != key
    assert software_key("", software) == ""
