"""Findings about a device's state before any load."""

from __future__ import annotations

from typing import Any

import pytest

from provisioning.gpu.check.hardware_state import (
    MemoryState,
    before_load,
    excuse_lowered_limits,
    links_up,
    memory_state,
    own_figures,
    untested_findings,
)
from provisioning.gpu.check.types import Action, Finding, Judgement, Severity, Status, TestResult

LIMITS = {
    "app_sm_clock_mhz": 1980, "default_sm_clock_mhz": 1980, "app_memory_clock_mhz": 3201,
    "default_memory_clock_mhz": 3201, "power_limit_set_mw": 700_000, "power_limit_default_mw": 700_000,
}  # fmt: skip


def links(up: int, down: int = 0, **more: Any) -> dict[str, Any]:
    return {"nvlinks": [{"active": True}] * up + [{"active": False}] * down, **more}


def found(snapshot: dict[str, Any], before: float | None = None) -> list[tuple[str, Severity, Action, str]]:
    last = None if before is None else {"nvlinks_up": before}
    return [(each.code, each.severity, each.action, each.text) for each in before_load(snapshot, last)]


@pytest.mark.parametrize(
    "snapshot",
    [
        {},
        {"ecc_uncorrected": 0},
        {"ecc_uncorrected": None},
        links(18, nvlinks_switched=True, nvlinks_of_partners=18),
        links(18, nvlinks_switched=True, nvlinks_of_partners=17),
        # Without bridges no link is up.
        links(0, 12),
        links(4, 14, nvlinks_of_partners=4),
        links(4, 14, nvlinks_of_partners=None, nvlinks_switched=False),
        links(0, 18, nvlinks_of_partners=18, nvlinks_switched=True, mig_mode=True),
        {"nvlinks": None, "nvlinks_of_partners": None},
        {"inforom_valid": True, "inforom_version": "G520.0200.00.05", "persistence": True, "nouveau": False},
        {"drawing": []},
        {"ecc": True, "ecc_default": True},
        {"ecc": False, "ecc_default": False},
        {"ecc": False, "ecc_default": None},
        {"ecc": None, "ecc_default": True},
        {"drawing": None},
        {"inforom_valid": None, "inforom_version": None, "persistence": None},
        LIMITS,
        LIMITS | {"app_sm_clock_mhz": 1981, "power_limit_set_mw": 700_001},
        LIMITS | {"app_sm_clock_mhz": None, "power_limit_set_mw": None},
        LIMITS | {"default_sm_clock_mhz": None, "power_limit_default_mw": None},
    ],
)
def test_healthy_state_has_no_findings(snapshot: dict[str, Any]) -> None:
    assert before_load(snapshot) == []


def test_uncorrected_errors_since_the_last_reset_fail() -> None:
    ((code, severity, action, text),) = found({"ecc_uncorrected": 1})
    assert (code, severity, action) == ("ecc_standing", Severity.FAIL, Action.DRAIN_AND_RESET)
    assert text.startswith("1 uncorrectable")


def test_corrupt_inforom_fails() -> None:
    ((code, severity, action, text),) = found({"inforom_valid": False, "inforom_version": "G520.0200.00.05"})
    assert (code, severity, action) == ("inforom", Severity.FAIL, Action.INSPECT)
    assert text.startswith("The InfoROM G520.0200.00.05 is corrupt, so ") and "Flash the InfoROM" in text
    ((_, _, _, text),) = found({"inforom_valid": False})
    assert text.startswith("The InfoROM is corrupt, so ")


def test_persistence_mode_is_reported_without_consequence() -> None:
    ((code, severity, action, text),) = found({"persistence": False})
    assert (code, severity, action) == ("persistence_off", Severity.INFO, Action.NONE)
    assert "nvidia-smi -pm 1" in text
    ((code, severity, action, text),) = found({"nouveau": True})
    assert (code, severity, action) == ("nouveau", Severity.INFO, Action.NONE)
    assert "blacklist nouveau" in text


def test_disabled_ecc_is_a_warning() -> None:
    ((code, severity, action, text),) = found({"ecc": False, "ecc_default": True})
    assert (code, severity, action) == ("ecc_off", Severity.DEGRADED, Action.INSPECT)
    assert (
        text.startswith("ECC is off, although it is on by default, so memory errors go undetected.")
        and "nvidia-smi -e 1" in text
    )


@pytest.mark.parametrize(
    ("now", "before", "more"), [(3, 3, 0), (0, 3, 0), (None, 3, 0), (3, None, 0), (3, 0, 3), (5, 4, 1)]
)
def test_memory_retired_since_the_last_check(now: int | None, before: float | None, more: int) -> None:
    last = {} if before is None else {"retired_memory": before}
    texts = [(f.code, f.severity, f.action, f.text) for f in before_load({"retired": now}, last)]
    text = f"{more} more memory pages or rows retired since the last check ({now} in total)."
    assert texts == ([("retired_memory", Severity.DEGRADED, Action.INSPECT, text)] if more else [])


def test_values_compared_with_the_last_check() -> None:
    assert own_figures({}) == {}
    assert own_figures(links(3, 1, retired=0)) == {"nvlinks_up": 3.0, "retired_memory": 0.0}


def drawing(*pids: int, memory_mib: int | None = None) -> list[dict[str, Any]]:
    return [{"pid": pid, "memory_mib": memory_mib} for pid in pids]


@pytest.mark.parametrize(
    ("ecc", "snapshots", "state"),
    [
        (True, ({}, None), MemoryState("free_mib:ecc")),
        (False, ({"drawing": [], "display_active": False}, {}), MemoryState("free_mib:no_ecc")),
        (None, (None, None), MemoryState("free_mib:ecc_unknown")),
        (True, ({"display_active": True}, {}), MemoryState("free_mib:ecc:display", True)),
        (
            True,
            ({"drawing": None}, {"drawing": drawing(7, memory_mib=300)}),
            MemoryState("free_mib:ecc:display", True, "process 7 (300 MiB)"),
        ),
        (
            None,
            ({"drawing": drawing(9, 8)}, {}),
            MemoryState("free_mib:ecc_unknown:display", True, "process 8, process 9"),
        ),
        (
            False,
            ({"drawing": drawing(*range(9))}, {"drawing": drawing(3)}),
            MemoryState("free_mib:no_ecc:display", True, ", ".join(f"process {pid}" for pid in range(8))),
        ),
    ],
)
def test_conditions_of_the_free_memory_comparison(
    ecc: bool | None, snapshots: tuple[Any, Any], state: MemoryState
) -> None:
    assert memory_state(ecc, snapshots) == state


def test_display_clients_are_reported_without_consequence() -> None:
    ((code, severity, action, text),) = found({"drawing": drawing(812, 77)})
    assert (code, severity, action) == ("drawing", Severity.INFO, Action.NONE)
    assert "Graphics programs (process 77, 812)" in text
    ((_, _, _, text),) = found({"drawing": drawing(*range(20))})
    assert "(process 0, 1, 2, 3, 4, 5, 6, 7)" in text


def test_inactive_nvlink_degrades() -> None:
    fewer = links(17, 1, nvlinks_switched=True, nvlinks_of_partners=18, model="NVIDIA H200")
    text = "17 NVLinks are up, but 18 are up on another NVIDIA H200 at the same switches or bridge."
    assert found(fewer) == [("nvlink_missing", Severity.FAIL, Action.RESET, text)]
    assert "another device at" in found(links(3, 1, nvlinks_of_partners=4))[0][3]
    # Bridges join all of their links: a partner that has more knows that this one lost some.
    assert found(links(0, 4, nvlinks_of_partners=1))[0][0] == "nvlink_missing"
    # Equal on all GPUs of the node, so perhaps by design.
    alike = links(17, 1, nvlinks_switched=True, nvlinks_of_partners=17)
    text = "17 of 18 NVLinks to the switches are up."
    assert found(alike) == [("nvlink_missing", Severity.DEGRADED, Action.INSPECT, text)]


@pytest.mark.parametrize(
    ("snapshot", "before"),
    [
        (links(4, 8), 4),
        (links(4, 8), 3),
        (links(0, 12), 0),
        (links(0, 12), None),
        (links(0, 12, mig_mode=True), 12),
        ({"nvlinks": None}, 12),
        ({"nvlinks": []}, 12),
    ],
)
def test_unchanged_links_have_no_findings(snapshot: dict[str, Any], before: float | None) -> None:
    assert found(snapshot, before) == []


def test_fewer_links_than_in_the_last_check_degrade() -> None:
    text = (
        "3 NVLinks are up, but 4 were up in the last check. Reset the GPU and check its bridges. "
        "If bridges were removed on purpose, uncordon the GPU."
    )
    assert found(links(3, 1), 4.0) == [("nvlink_missing", Severity.FAIL, Action.RESET, text)]
    assert found(links(1, 3), 2.0)[0][1] == Severity.FAIL
    # The bridge may have been removed; the next check accepts that.
    text = (
        "No NVLinks are up; the last check found 1. "
        "Check the bridge, unless the bridge was removed on purpose."
    )
    assert found(links(0, 4), 1) == [("nvlink_missing", Severity.DEGRADED, Action.INSPECT, text)]


def test_number_of_links() -> None:
    assert links_up(links(3, 1)) == 3 and links_up(links(0, 1)) == 0
    assert links_up({}) is links_up({"nvlinks": []}) is links_up(links(3, mig_mode=True)) is None


def test_lowered_limits_are_reported() -> None:
    text = "Application clocks are below the default: SM 1979 of 1980 MHz, memory 3200 of 3201 MHz. "
    assert found(LIMITS | {"app_sm_clock_mhz": 1979, "app_memory_clock_mhz": 3200}) == [
        ("clocks_lowered", Severity.DEGRADED, Action.INSPECT, f"{text}Reset them: nvidia-smi -rac.")
    ]
    # A limit set on purpose is no fault; values that are low because of it are warnings.
    text = "The power limit is below the default: 699 of 700 W. Reset the limit: nvidia-smi -pl 700."
    lowered = [("power_lowered", Severity.INFO, Action.NONE, text)]
    assert found(LIMITS | {"power_limit_set_mw": 699_999}) == lowered
    assert found(LIMITS | {"power_limit_mw": 699_999}) == lowered
    assert found(LIMITS | {"power_limit_mw": 699_999, "power_limit_set_mw": None}) == lowered
    rounded = LIMITS | {"power_limit_set_mw": 650_000, "power_limit_default_mw": 700_999}
    assert found(rounded)[0][3].startswith("The power limit is below the default: 650 of 700 W.")


@pytest.mark.parametrize(("capability", "codes"), [((7, 0), 1), ((7, 5), 0), ((9, 0), 0), (None, 0)])
def test_volta_tensor_cores_are_reported_as_untested(capability: tuple[int, int] | None, codes: int) -> None:
    findings = untested_findings(capability)
    assert [(f.severity, f.action) for f in findings] == [(Severity.DEGRADED, Action.INSPECT)] * codes


@pytest.mark.parametrize(
    ("capability", "codes"),
    [((9, 0), []), ((10, 0), ["fp4_untested"]), ((10, 3), ["fp4_untested"]), ((12, 0), []), (None, [])],
)
def test_fp4_without_a_kernel_is_a_note(capability: tuple[int, int] | None, codes: list[str]) -> None:
    assert [(f.code, f.severity, f.action) for f in untested_findings(capability)] == [
        (code, Severity.INFO, Action.NONE) for code in codes
    ]


def result(status: Status, figure: Status, errors: int | None = 0) -> TestResult:
    return TestResult(
        "copy", status, True, "low", errors=errors, judgements=(Judgement("copy_gb_s", 1.0, "GB/s", figure),)
    )


@pytest.mark.parametrize("code", ["clocks_lowered", "power_lowered"])
def test_low_value_due_to_lowered_limits_is_a_warning(code: str) -> None:
    low = [Finding(code, Severity.DEGRADED, "low")]
    (test,) = excuse_lowered_limits([result(Status.FAILED, Status.FAILED)], low)
    assert (test.status, test.text) == (Status.WARNED, "low; clocks or power limit are below the default")
    for other in (
        result(Status.FAILED, Status.FAILED, errors=1),
        result(Status.FAILED, Status.PASSED),
        result(Status.PASSED, Status.FAILED),
        result(Status.HUNG, Status.FAILED),
    ):
        assert excuse_lowered_limits([other], low) == (other,)
    failed = result(Status.FAILED, Status.FAILED)
    assert excuse_lowered_limits([failed], [Finding("nvlink_missing", Severity.DEGRADED, "x")]) == (failed,)
    assert excuse_lowered_limits([failed], []) == (failed,)
