"""Prometheus pages: format, metrics, permissions and cost."""

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

from portal.catalog.models import Flavor, Template
from portal.common.events import live
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device
from portal.reports import metrics, start_counts
from portal.workspaces import services as workspaces
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import StateChanged, WorkspaceFailed, WorkspaceReady, WorkspaceRequested
from portal.workspaces.lifecycle import TerminationReason
from portal.workspaces.models import Workspace
from provisioning.gpu import dcgm_names
from provisioning.gpu.samples import Sample
from provisioning.types import DeviceInfo, DeviceKind
from tests.factories import (
    FlavorFactory,
    WorkspaceFactory,
    create_workspace,
    local_pool_with,
    make_token,
    node_info,
)
from tests.inventory.sampled import SamplesInRedis, apply, rollup
from tests.reports import promlint
from tests.suite.choice import examples

pytestmark = pytest.mark.sqlite

LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (-?[0-9.e+-]+)")
PAIR = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')
UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Parsed = dict[str, list[tuple[dict[str, str], float]]]


def parse(text: str) -> Parsed:
    """Parse the text format strictly: unknown input fails."""
    found: Parsed = {}
    name = ""
    lines = text.split("\n")
    assert lines.pop() == "", "the last line has an end too"
    for number, line in enumerate(lines):
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in found, f"{name} comes in two groups"
            counts = name in dcgm_names.COUNTERS or name.endswith("_total")
            kind = "histogram" if name.endswith("_ready_seconds") else "counter" if counts else "gauge"
            assert lines[number + 1] == f"# TYPE {name} {kind}"
            found[name] = []
            continue
        if line.startswith("# TYPE "):
            continue
        match = LINE.fullmatch(line)
        assert match and (match[1] == name or match[1] in (f"{name}_bucket", f"{name}_count", f"{name}_sum"))
        found.setdefault(match[1], [])
        pairs = PAIR.findall(match[2] or "")
        assert "".join(f'{key}="{value}",' for key, value in pairs).rstrip(",") == (match[2] or "")
        labels = {key: re.sub(r'\\[\\"n]', lambda one: UNESCAPED[one[0]], value) for key, value in pairs}
        assert labels not in [known for known, _ in found[match[1]]], f"twice: {line}"
        found[match[1]].append((labels, float(match[3])))
    return {name: samples for name, samples in found.items() if samples}


def value(parsed: Parsed, name: str, **labels: str) -> float:
    """Return the value of the only sample with these labels."""
    (found,) = [value for known, value in parsed[name] if labels.items() <= known.items()]
    return found


# --- format ---------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), max_size=20)


@hypothesis(max_examples=examples(30))
@given(help_text=texts, label=texts, number=st.floats(allow_nan=False, allow_infinity=False, width=32))
@example(help_text='a\n"\\n', label='\\n\n"\\"', number=0.1)
def test_any_written_metric_can_be_parsed(help_text, label, number):
    gauge = GaugeMetricFamily("some_name", help_text)
    gauge.add_sample("some_name", {"what": label, "other": "x"}, number)
    with patch.object(metrics, "gpu_families", lambda now: [gauge, GaugeMetricFamily("empty", "")]):
        found = parse(metrics.gpu_exposition().decode())
    assert found == {"some_name": [({"what": label, "other": "x"}, number)]}


def test_metric_names_match_the_exporter():
    sample = Sample(0, **{name: 1 for name in asdict(Sample(0)) if name not in ("at_s", "processes")})
    info = DeviceInfo(uuid="G", index=0, model="m", memory_mib=5)
    assert {name for name, _, _ in dcgm_names.readings(sample, info)} == set(dcgm_names.help_texts())


# --- content --------------------------------------------------------------------------------------


@pytest.fixture
def lab(catalog):
    return local_pool_with(node_info("gpu-01", gpus=4), slug="lab")


@pytest.fixture
def read(client, bob):
    client.force_login(bob)

    def read(address: str = "/metrics") -> Parsed:
        answer = client.get(address)
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
    parsed = read("/metrics/gpus")
    labels = {
        "gpu": "1", "UUID": "GPU-gpu-01-1", "device": "nvidia1", "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "gpu-01", "pool": "lab", "simulated": "false",
    }  # fmt: skip
    assert parsed["DCGM_FI_DEV_GPU_UTIL"] == [(labels, 37)]
    assert parsed["DCGM_FI_DEV_POWER_USAGE"] == [(labels, 412.5)]
    assert parsed["DCGM_FI_DEV_FB_FREE"] == [(labels, 81_000)]
    assert "DCGM_FI_DEV_GPU_TEMP" not in parsed, "what is not measured is not told"


def test_increasing_metrics_are_counters_with_the_exporters_names(lab, client, bob, monkeypatch):
    counted = {"energy_mj": 123, "pcie_replays": 5, "ecc_corrected": 1, "ecc_uncorrected": 0}
    sample = Sample(
        timezone.now().timestamp(), remapped_corrected=2, remapped_uncorrected=0, last_xid=31, **counted
    )
    in_redis(monkeypatch, ("GPU-gpu-01-1", sample))
    client.force_login(bob)
    text = client.get("/metrics/gpus").text
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
    # The reader of Prometheus uses that name as well.
    read = {family.name: family for family in text_string_to_metric_families(text)}
    energy = read["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]
    assert (energy.type, [sample.value for sample in energy.samples]) == ("counter", [123.0])


def test_newest_minute_is_exported_without_redis_while_current(lab, read):
    now_s = int(timezone.now().timestamp()) // 60 * 60
    for index, back in ((0, 2), (0, 1), (1, 10)):
        minute = rollup(f"GPU-gpu-01-{index}", now_s - 60 * back, [50 // back] * 60)
        apply(minute, node="gpu-01", pool="lab", now_s=now_s)
    parsed = read("/metrics/gpus")
    assert [(labels["UUID"], each) for labels, each in parsed["DCGM_FI_DEV_GPU_UTIL"]] == [
        ("GPU-gpu-01-0", 50)
    ]
    assert "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" not in parsed


def test_mig_instances_are_distinguished(lab, read, monkeypatch):
    parent = Device.objects.get(uuid="GPU-gpu-01-0")
    fields = {"node": parent.node, "model": "MIG", "kind": DeviceKind.MIG.value, "parent_uuid": parent.uuid}
    for number in (1, 2):
        Device.objects.create(uuid=f"MIG-{number}", mig_profile="1g.10gb", **fields)
    sample = Sample(timezone.now().timestamp(), gpu_util_pct=1)
    in_redis(monkeypatch, ("MIG-1", sample), ("MIG-2", sample))
    told = [labels for labels, _ in read("/metrics/gpus")["DCGM_FI_DEV_GPU_UTIL"]]
    assert [each["GPU_I_UUID"] for each in told] == ["MIG-1", "MIG-2"]
    assert {each["UUID"] for each in told} == {parent.uuid}


def test_workspace_and_queue_metrics(lab, pool, read, bob, team):
    FlavorFactory(slug="here", pool=lab)
    fields = {"owner": bob, "team": team, "state": "pending"}
    for minutes, flavor in ((5, "here"), (50, "here"), (7, "any")):
        WorkspaceFactory(
            requested_at=timezone.now() - timedelta(minutes=minutes),
            flavor=FlavorFactory(slug=f"{flavor}-{minutes}", pool=lab if flavor == "here" else None),
            **fields,
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


def test_empty_site_exports_metrics(db, read):
    assert read()["berth_queue_length"] == [({"pool": "", "simulated": "false"}, 0)]


@pytest.mark.parametrize(("address", "limit"), [("/metrics", 11), ("/metrics/gpus", 4)])
def test_queries_do_not_grow_with_devices(catalog, client, bob, address, limit):
    client.force_login(bob)
    # Stores the last use of the session every few minutes.
    client.get(address)

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert client.get(address).status_code == 200
        return len(seen)

    local_pool_with(node_info("gpu-01", gpus=1), slug="one")
    few = queries()
    for number in range(3):
        local_pool_with(node_info(f"gpu-1{number}", gpus=8), slug=f"more-{number}")
    assert queries() == few <= limit


# --- promtool -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# HELP a_total x\n# TYPE a_total gauge\n", "counters, and only they, end in _total"),
        ("# HELP a x\n# TYPE a counter\n", "counters, and only they, end in _total"),
        ("# HELP a_hours x\n# TYPE a_hours gauge\n", "hours is no base unit"),
        ("# HELP a_milliseconds x\n# TYPE a_milliseconds gauge\n", "milliseconds is no base unit"),
        ("# HELP a_s x\n# TYPE a_s gauge\n", "an abbreviated unit"),
        ("# HELP a_gauge x\n# TYPE a_gauge gauge\n", "the type is in the name"),
        ('# HELP a x\n# TYPE a gauge\na{modelName="x"} 1\n', "camelCase"),
        ('# HELP a x\n# TYPE a gauge\na{le="1"} 1\n', "_bucket and le are reserved for histograms"),
        ("# TYPE a gauge\na 1\n", "no help text"),
        ("# HELP a x\n# TYPE a gauge\na 1\na 2\n", "a sample twice"),
    ],
)
def test_promlint_rules_find_the_problems_of_promtool(text, problem):
    assert [found.partition(": ")[2] for found in promlint.problems(text)] == [problem]


def test_every_metric_passes_the_rules_of_promtool(lab, client, bob, team, counted, monkeypatch):
    in_redis(monkeypatch, ("GPU-gpu-01-1", Sample(timezone.now().timestamp(), gpu_util_pct=37)))
    client.force_login(bob)
    text = client.get("/metrics").text
    written = {metric.name for metric in promlint.read(text)}
    assert {"berth_gpus_free", "berth_workspace_requests_total", "berth_workspace_ready_seconds"} <= written
    assert promlint.problems(text) == []
    assert [family.name for family in text_string_to_metric_families(text)]


# --- starts ---------------------------------------------------------------------------------------


@pytest.fixture
def counted(bob, team, pool, django_capture_on_commit_callbacks) -> Workspace:
    """A workspace with counted request, start, ready time and failure, the first two twice."""
    workspace = WorkspaceFactory(owner=bob, team=team, pool=pool, state="provisioning")
    workspace.ready_at = workspace.requested_at + timedelta(seconds=10.5)
    lost = WorkspaceFailed(workspace, TerminationReason.LOST, Reason(WorkspaceCode.NOT_STARTABLE))
    with django_capture_on_commit_callbacks(execute=True):
        start_counts.count_request(WorkspaceRequested(workspace))
        start_counts.count_request(WorkspaceRequested(workspace))
        start_counts.count_starts(StateChanged((workspace, workspace)))
        start_counts.count_ready(WorkspaceReady(workspace))
        start_counts.count_failure(lost)
    return workspace


def test_requests_starts_failures_and_ready_times_are_counted_by_team(read, team, counted):
    parsed = read()
    assert parsed["berth_workspace_requests_total"] == [({"team": team.slug}, 2)]
    assert parsed["berth_workspace_starts_total"] == [({"team": team.slug}, 2)]
    assert parsed["berth_workspace_failures_total"] == [({"team": team.slug, "reason": "lost"}, 1)]
    buckets = {labels["le"]: count for labels, count in parsed["berth_workspace_ready_seconds_bucket"]}
    assert buckets["10"] == 0 and buckets["20"] == buckets["86400"] == buckets["+Inf"] == 1
    assert parsed["berth_workspace_ready_seconds_sum"] == [({"team": team.slug}, 10.5)]
    assert parsed["berth_workspace_ready_seconds_count"] == [({"team": team.slug}, 1)]


def test_start_of_several_days_is_in_the_last_bucket(read, counted, django_capture_on_commit_callbacks):
    counted.ready_at = counted.requested_at + timedelta(days=3)
    with django_capture_on_commit_callbacks(execute=True):
        start_counts.count_ready(WorkspaceReady(counted))
    buckets = {labels["le"]: count for labels, count in read()["berth_workspace_ready_seconds_bucket"]}
    assert buckets["86400"] == 1 and buckets["+Inf"] == 2


def test_creating_and_starting_count_as_requests(pool, read, bob, team, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        workspace = create_workspace(
            actor=bob,
            team=team,
            template=Template.objects.get(slug="jupyterlab"),
            flavor=Flavor.objects.get(slug="sim-cpu"),
        )
        Workspace.objects.filter(pk=workspace.pk).update(state="failed")
        workspaces.start(actor=bob, workspace_id=workspace.pk)
    assert read()["berth_workspace_requests_total"] == [({"team": team.slug}, 2)]


def test_gpus_and_usage_of_a_team_are_exported(lab, read, bob, team, monkeypatch):
    devices = list(Device.objects.filter(node__pool=lab).select_related("node").order_by("index"))
    for device, milli in zip(devices, (1000, 500), strict=False):
        allocation = Allocation.objects.create(
            workspace=WorkspaceFactory(owner=bob, team=team, pool=lab, state="running"), node=device.node,
            generation=1, cpu_milli=0, memory_mib=0, granted_at=timezone.now(),
        )  # fmt: skip
        AllocatedDevice.objects.create(allocation=allocation, device=device, milli=milli)
    now = timezone.now().timestamp()
    in_redis(monkeypatch, *((device.uuid, Sample(now, gpu_util_pct=40)) for device in devices))
    parsed = read()
    labels = {"team": team.slug, "simulated": "false"}
    assert parsed["berth_team_gpus_allocated"] == [(labels, 1.5)]
    assert parsed["berth_team_gpus_used"] == [(labels, 0.8)]


# --- permissions ----------------------------------------------------------------------------------


def test_metrics_require_a_token_with_permission(client, bob, settings):
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
