"""The page for Prometheus: its format, what it tells, who may read it, and what it costs."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import example, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from portal.common.events import live
from portal.fleet.inventory.models import Device
from portal.reports import metrics
from provisioning.gpu import dcgm_names
from provisioning.gpu.samples import Sample
from provisioning.types import DeviceInfo, DeviceKind
from tests.factories import FlavorFactory, WorkspaceFactory, local_pool_with, make_token, node_info
from tests.inventory.sampled import SamplesInRedis, apply, rollup
from tests.suite.choice import examples

pytestmark = pytest.mark.sqlite

LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (-?[0-9.e+-]+)")
PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')
UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Parsed = dict[str, list[tuple[dict[str, str], float]]]


def parse(text: str) -> Parsed:
    """A strict reader of the text format: what it does not know fails."""
    found: Parsed = {}
    name = ""
    lines = text.split("\n")
    assert lines.pop() == "", "the last line has an end too"
    for number, line in enumerate(lines):
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in found, f"{name} comes in two groups"
            kind = "counter" if name in dcgm_names.COUNTERS else "gauge"
            assert lines[number + 1] == f"# TYPE {name} {kind}"
            found[name] = []
            continue
        if line.startswith("# TYPE "):
            continue
        match = LINE.fullmatch(line)
        assert match and match[1] == name, line
        pairs = PAIR.findall(match[2] or "")
        assert "".join(f'{key}="{value}",' for key, value in pairs).rstrip(",") == (match[2] or "")
        labels = {key: re.sub(r'\\[\\"n]', lambda one: UNESCAPED[one[0]], value) for key, value in pairs}
        assert labels not in [known for known, _ in found[name]], f"twice: {line}"
        found[name].append((labels, float(match[3])))
    assert all(found.values())
    return found


def value(parsed: Parsed, name: str, **labels: str) -> float:
    """The value of the one sample that has these labels."""
    (found,) = [value for known, value in parsed[name] if labels.items() <= known.items()]
    return found


# --- the format -----------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), max_size=20)


@hypothesis(max_examples=examples(30))
@given(help_text=texts, label=texts, number=st.floats(allow_nan=False, allow_infinity=False, width=32))
@example(help_text='a\n"\\n', label='\\n\n"\\"', number=0.1)
def test_whatever_is_written_can_be_read(help_text, label, number):
    gauge = GaugeMetricFamily("some_name", help_text)
    gauge.add_sample("some_name", {"what": label, "other": "x"}, number)
    with patch.object(metrics, "families", lambda now: [gauge, GaugeMetricFamily("empty", "")]):
        found = parse(metrics.exposition().decode())
    assert found == {"some_name": [({"what": label, "other": "x"}, number)]}


def test_names_are_those_of_the_exporter():
    sample = Sample(0, **{name: 1 for name in asdict(Sample(0)) if name not in ("at_s", "processes")})
    info = DeviceInfo(uuid="G", index=0, model="m", memory_mib=5)
    assert {name for name, _, _ in dcgm_names.readings(sample, info)} == set(dcgm_names.help_texts())


# --- what it tells --------------------------------------------------------------------------------


@pytest.fixture
def lab(catalog):
    return local_pool_with(node_info("gpu-01", gpus=4), slug="lab")


@pytest.fixture
def read(client, bob):
    client.force_login(bob)

    def read() -> Parsed:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parse(answer.text)

    return read


def in_redis(monkeypatch, *samples: tuple[str, Sample]) -> None:
    stored = {uuid: asdict(sample) for uuid, sample in samples}
    monkeypatch.setattr(live, "connection", lambda: SamplesInRedis({"gpu-01": stored}))


def test_gpus_carry_the_names_and_labels_of_the_exporter(lab, read, monkeypatch):
    now = timezone.now().timestamp()
    in_redis(
        monkeypatch, ("GPU-gpu-01-1", Sample(now, gpu_util_pct=37, power_mw=412_500, memory_used_mib=559))
    )
    parsed = read()
    who = {
        "gpu": "1", "UUID": "GPU-gpu-01-1", "device": "nvidia1", "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "gpu-01", "pool": "lab", "simulated": "false",
    }  # fmt: skip
    assert parsed["DCGM_FI_DEV_GPU_UTIL"] == [(who, 37)]
    assert parsed["DCGM_FI_DEV_POWER_USAGE"] == [(who, 412.5)]
    assert parsed["DCGM_FI_DEV_FB_FREE"] == [(who, 81_000)]
    assert "DCGM_FI_DEV_GPU_TEMP" not in parsed, "what is not measured is not told"


def test_what_counts_on_is_a_counter_by_the_name_of_the_exporter(lab, client, bob, monkeypatch):
    counted = {"energy_mj": 123, "pcie_replays": 5, "ecc_corrected": 1, "ecc_uncorrected": 0}
    sample = Sample(
        timezone.now().timestamp(), remapped_corrected=2, remapped_uncorrected=0, last_xid=31, **counted
    )
    in_redis(monkeypatch, ("GPU-gpu-01-1", sample))
    client.force_login(bob)
    text = client.get("/metrics").text
    kinds = {line.split(" ")[2]: line.split(" ")[3] for line in text.splitlines() if "# TYPE DCGM_" in line}
    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    }
    assert kinds["DCGM_FI_DEV_XID_ERRORS"] == "gauge"
    assert value(parse(text), "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", UUID="GPU-gpu-01-1") == 5
    # Prometheus' own reader knows them by that name as well.
    read = {each.name: each for each in text_string_to_metric_families(text)}
    energy = read["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]
    assert (energy.type, [sample.value for sample in energy.samples]) == ("counter", [123.0])


def test_without_redis_the_newest_minute_is_told_while_it_is_true(lab, read):
    now_s = int(timezone.now().timestamp()) // 60 * 60
    for index, back in ((0, 2), (0, 1), (1, 10)):
        minute = rollup(f"GPU-gpu-01-{index}", now_s - 60 * back, [50 // back] * 60)
        apply(minute, node="gpu-01", pool="lab", now_s=now_s)
    parsed = read()
    assert [(labels["UUID"], each) for labels, each in parsed["DCGM_FI_DEV_GPU_UTIL"]] == [
        ("GPU-gpu-01-0", 50)
    ]
    assert "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" not in parsed


def test_instances_are_told_apart(lab, read, monkeypatch):
    parent = Device.objects.get(uuid="GPU-gpu-01-0")
    fields = {"node": parent.node, "model": "MIG", "kind": DeviceKind.MIG.value, "parent_uuid": parent.uuid}
    for number in (1, 2):
        Device.objects.create(uuid=f"MIG-{number}", mig_profile="1g.10gb", **fields)
    sample = Sample(timezone.now().timestamp(), gpu_util_pct=1)
    in_redis(monkeypatch, ("MIG-1", sample), ("MIG-2", sample))
    told = [labels for labels, _ in read()["DCGM_FI_DEV_GPU_UTIL"]]
    assert [each["GPU_I_UUID"] for each in told] == ["MIG-1", "MIG-2"]
    assert {each["UUID"] for each in told} == {parent.uuid}


def test_workspaces_and_the_queue(lab, pool, read, bob, team):
    FlavorFactory(slug="here", pool=lab)
    wanted = {"owner": bob, "team": team, "state": "pending"}
    for minutes, flavor in ((5, "here"), (50, "here"), (7, "any")):
        WorkspaceFactory(
            requested_at=timezone.now() - timedelta(minutes=minutes),
            flavor=FlavorFactory(slug=f"{flavor}-{minutes}", pool=lab if flavor == "here" else None),
            **wanted,
        )
    WorkspaceFactory(owner=bob, team=team, state="running", pool=lab)
    WorkspaceFactory(owner=bob, team=team, state="terminated", pool=lab)
    parsed = read()
    assert value(parsed, "berth_queue_length", pool="lab") == 2
    assert value(parsed, "berth_queue_length", pool="") == 1
    assert value(parsed, "berth_queue_length", pool="sim") == 0
    assert value(parsed, "berth_queue_oldest_wait_seconds", pool="lab") == pytest.approx(3000, abs=5)
    assert value(parsed, "berth_queue_oldest_wait_seconds", pool="sim") == 0
    assert value(parsed, "berth_workspaces", state="running", pool="lab") == 1
    assert value(parsed, "berth_workspaces", state="pending") == 3
    assert not [labels for labels, _ in parsed["berth_workspaces"] if labels["state"] == "terminated"]
    assert value(parsed, "berth_pool_online", pool="lab") == 1


def test_a_site_without_anything_has_a_page_too(db, read):
    assert read()["berth_queue_length"] == [({"pool": "", "simulated": "false"}, 0)]


def test_more_devices_take_no_more_queries(catalog, client, bob):
    client.force_login(bob)
    # Notes when the session was last seen, once in some minutes.
    client.get("/metrics")

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert client.get("/metrics").status_code == 200
        return len(seen)

    local_pool_with(node_info("gpu-01", gpus=1), slug="one")
    few = queries()
    for number in range(3):
        local_pool_with(node_info(f"gpu-1{number}", gpus=8), slug=f"more-{number}")
    assert queries() == few <= 8


# --- who may --------------------------------------------------------------------------------------


def test_tokens(client, bob, settings):
    def status(secret: str | None) -> int:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        return client.get("/metrics", headers=headers).status_code

    assert status(None) == 401 and status("") == 401 and status("berth_nonsense") == 401
    assert status(make_token(bob, "pools:read")[1]) == 200
    assert status(make_token(bob)[1]) == 200
    assert status(make_token(bob, "catalog:read")[1]) == 403
    settings.BERTH_METRICS_TOKEN = "a secret of its own"
    assert status("a secret of its own") == 200 and status("a secret of its") == 401 and status("") == 401
    assert client.get("/metrics")["WWW-Authenticate"].startswith("Bearer")
    assert client.post("/metrics").status_code in (403, 405)
