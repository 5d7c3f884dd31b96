"""The placement benchmark: a small replay with recorded results, and its report."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.placement import __main__ as bench
from bench.placement import speed
from bench.placement.replay import MIXES, Learner, catalog_flavors, replay
from bench.placement.traces import read_nodes, read_workloads, renamed
from portal.scheduling.engine.placement.engine import RequestMix

SAMPLE = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[5] / "shared" / "traces"


def sample():
    return read_nodes(SAMPLE), next(read_workloads(SAMPLE))


@pytest.mark.parametrize(
    ("mix", "allocation", "fragmentation"),
    [("known", (95.0, 95.4), (7.0, 4.5)), ("learnt", (94.7, 95.2), (7.3, 4.8))],
)
def test_allocation_and_fragmentation_do_not_regress(mix, allocation, fragmentation):
    curve = replay(*sample(), "fragmentation", mix=mix)
    assert curve.allocation[100] >= allocation[0]
    assert curve.allocation[130] >= allocation[1]
    assert curve.fragmentation[80] <= fragmentation[0]
    assert curve.fragmentation[130] <= fragmentation[1]


@pytest.mark.thorough("a trace, as bench/placement has it")
def test_mix_is_learned_as_requests_arrive():
    nodes, workload = sample()
    curve = {
        mix: replay(nodes, workload, "fragmentation", measure=False, mix=mix).allocation for mix in MIXES
    }
    assert curve["learnt"][130] > curve["default"][130]
    assert abs(curve["learnt"][130] - curve["known"][130]) < 0.6


def test_replay_starts_with_the_mix_of_the_default_flavors():
    nodes, workload = sample()
    sizes = {(each.accelerators.model, each.accelerators.count) for each in catalog_flavors(nodes)}
    assert {count for model, count in sizes if model == ""} == {0}
    largest = {}
    for node in nodes:
        for device in node.devices:
            largest[device.model] = max(largest.get(device.model, 0), len(node.devices))
    assert {count for _, count in sizes} == {0} | {n for n in (1, 2, 4, 8) if n <= max(largest.values())}
    assert {model for model, _ in sizes} == {"", *largest}
    assert Learner(nodes, workload).mix == RequestMix.learnt((), catalog_flavors(nodes))


def test_fragmentation_beats_best_fit_and_best_fit_beats_spread():
    at_the_end = [
        replay(*sample(), policy, measure=False).allocation[130]
        for policy in ("fragmentation", "best_fit", "spread")
    ]
    assert at_the_end == sorted(at_the_end, reverse=True)
    assert at_the_end[0] - at_the_end[1] > 1
    assert at_the_end[1] - at_the_end[2] > 5


@pytest.mark.thorough("a trace, as bench/placement has it")
def test_replay_does_not_depend_on_node_names_or_order():
    nodes, workload = sample()
    plain = replay(nodes, workload, "fragmentation", measure=False).allocation
    assert replay(renamed(nodes, 5), workload, "fragmentation", measure=False).allocation == plain


def test_report_has_a_row_for_each_workload_and_seed(tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(SAMPLE, data)
    (data / "published").mkdir()
    (data / "published" / "fgd_published_alloc.csv").write_text(
        "workload,policy,"
        + ",".join(f"alloc_at_{mark}pct_mean" for mark in (80, 90, 95, 100, 110, 120, 130))
        + "\n"
        "openb_pod_list_sample,06-FGD,80,90,92,94,94,94,94\n"
    )
    report = tmp_path / "out.json"
    assert bench.main(["--data", str(data), "--json", str(report), "--renamings", "1"]) == 0
    found = json.loads(report.read_text())
    (row,) = found["workloads"]
    assert (row["workload"], row["seed"], row["fgd_95"], row["fgd_130"]) == ("sample", 1, 92, 94)
    assert row["alloc_100"] > 94.5
    assert row["frag_80"] < 7.5
    assert row["renamings"]["alloc_100_mean"] == row["alloc_100"]
    assert (found["gpus"], found["mix"]) == (715, "learnt")
    printed = capsys.readouterr().out
    assert "mix learnt: as in the portal" in printed
    assert "(+" in printed


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: shutil.rmtree(data / "openb"), "openb_node_list_gpu_node.csv is missing"),
        (lambda data: shutil.rmtree(data / "openb" / "arrivals"), "holds no orders of arrival"),
        (lambda data: (data / "openb" / "openb_pod_list_sample.csv.gz").unlink(), "is missing"),
    ],
)
def test_missing_input_is_named(tmp_path, capsys, spoil, message):
    data = tmp_path / "data"
    shutil.copytree(SAMPLE, data)
    spoil(data)
    assert bench.main(["--data", str(data)]) == 2
    assert message in capsys.readouterr().err


def test_request_missing_in_the_list_is_named(tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(SAMPLE, data)
    (data / "openb" / "arrivals" / "openb_sample.seed2.names.txt").write_text("openb-pod-x\n")
    assert bench.main(["--data", str(data), "--seed", "2"]) == 2
    assert "openb-pod-x" in capsys.readouterr().err


def test_decision_time_is_measured_cold_and_cached(tmp_path):
    report = tmp_path / "speed.json"
    options = ["--data", str(SAMPLE), "--workload", "sample", "--requests", "400", "--json", str(report)]
    assert speed.main(options) == 0
    found = json.loads(report.read_text())
    assert found["gpus"] == 2 * 715
    for way in ("fill", "churn"):
        assert 0 < found[way]["p50_ms"] <= found[way]["p99_ms"] <= found[way]["max_ms"]
        assert found[way]["placed"] > 300


@pytest.mark.thorough("a whole trace, as bench/placement has it")
def test_full_workload_meets_published_results():
    if not (SHARED / "openb").is_dir():
        pytest.skip(f"the openb traces are not at {SHARED}")
    workload = next(each for each in read_workloads(SHARED) if (each.name, each.seed) == ("default", 42))
    curve = replay(read_nodes(SHARED), workload, "fragmentation")
    assert curve.allocation[95] >= 94.92 - 0.15
    assert curve.allocation[100] >= 95.14
    assert curve.allocation[130] >= 95.29
    assert curve.fragmentation[80] <= 5.97
    assert curve.fragmentation[130] <= 4.57


def test_chart_has_a_title_and_text_alternative(tmp_path):
    data = tmp_path / "data"
    shutil.copytree(SAMPLE, data)
    (data / "published").mkdir()
    marks = (80, 90, 95, 100, 110, 120, 130)
    (data / "published" / "alloc_by_seed.csv").write_text(
        "workload,sc_policy,seed," + ",".join(map(str, marks)) + "\n"
        "openb_pod_list_sample,06-FGD,1,80,90,92,94,94,94,94\n"
    )
    chart = tmp_path / "chart.svg"
    assert bench.main(["--data", str(data), "--chart", str(chart)]) == 0
    drawn = ElementTree.parse(chart).getroot()
    words = " ".join(drawn.itertext())
    assert re.search(r"On average Berth gives out \d\.\d\d points more of the GPUs than published FGD", words)
    assert re.search(r"FGD, published 94\.0 %, Berth 9\d\.\d %", words)
