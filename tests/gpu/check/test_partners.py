"""Devices whose NVLinks are compared: those on the same switches or bridge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioning.gpu.check import hardware_state
from provisioning.gpu.check.nvml_read import DeviceReader
from tests.gpu.fake_nvml import FakeGpu, FakeLibrary, Link, h200, installed

DOWN = Link("", active=False)
SWITCH = Link("00000000:07:00.0", switch=True)
NVL = "NVIDIA H200 NVL"


def link_to(gpu: FakeGpu, count: int = 4) -> list[Link]:
    return [Link(gpu.bus)] * count


def links_and_findings(tmp_path: Path, *gpus: FakeGpu) -> tuple[int | None, list[str]]:
    """The partners' links of the first device, and the findings about its links."""
    with installed(FakeLibrary(gpus)):
        snapshot = DeviceReader(gpus[0].uuid, root=tmp_path).snapshot()
    findings = hardware_state.before_load(snapshot)
    return snapshot["nvlinks_of_partners"], [f.severity for f in findings if f.code == "nvlink_missing"]


def pair(first: list[Link], second: list[Link], *others: list[Link], **more: Any) -> list[FakeGpu]:
    links = (first, second, *others)
    return [h200(number, name=NVL, links=of, **more) for number, of in enumerate(links)]


def test_card_without_bridge_has_no_partners(tmp_path: Path) -> None:
    a, b, c = h200(1), h200(2), h200(0, name=NVL, links=[DOWN] * 18)
    cards = [h200(1, name=NVL, links=link_to(b)), h200(2, name=NVL, links=link_to(a))]
    assert links_and_findings(tmp_path, c, *cards) == (None, [])
    assert links_and_findings(tmp_path, cards[0], cards[1], c) == (4, [])


def test_bridges_of_two_and_of_four_cards(tmp_path: Path) -> None:
    a, b, c, d, e, f = map(h200, range(6))
    two = [h200(0, name=NVL, links=[*link_to(b), DOWN]), h200(1, name=NVL, links=[*link_to(a), DOWN])]
    four = [
        h200(
            here,
            name=NVL,
            links=[link for other in (c, d, e, f) for link in link_to(other) if other.minor != here],
        )
        for here in (2, 3, 4, 5)
    ]
    assert links_and_findings(tmp_path, *two, *four) == (4, [])
    assert links_and_findings(tmp_path, *four, *two) == (12, [])


def test_fewer_links_than_the_partner_fail(tmp_path: Path) -> None:
    a, b, c = map(h200, range(3))
    ring = [
        h200(0, links=[DOWN, *link_to(c)]),
        h200(1, links=[DOWN, *link_to(c)]),
        h200(2, links=[*link_to(a), *link_to(b)]),
    ]
    assert links_and_findings(tmp_path, *ring) == (8, ["fail"])


@pytest.mark.parametrize(("up", "severities"), [(0, ["fail"]), (17, ["fail"]), (18, [])])
def test_all_devices_on_switches_are_partners(tmp_path: Path, up: int, severities: list[str]) -> None:
    own = h200(0, links=[SWITCH] * up + [DOWN] * (18 - up))
    assert links_and_findings(tmp_path, own, h200(1)) == (18, severities)


def test_other_models_and_lost_devices_are_not_partners(tmp_path: Path) -> None:
    own = h200(0, links=[DOWN] * 18)
    assert links_and_findings(tmp_path, own, h200(1, name=NVL)) == (None, [])
