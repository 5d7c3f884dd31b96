"""Checks on pages and over REST; simulated ones are marked."""

from __future__ import annotations

import json
from html import unescape

import jsonschema
import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import AsyncClient

from portal.common.events import live
from portal.fleet.inventory.models import Device, Pool
from portal.gpu_checks import results, runs
from portal.gpu_checks.models import GpuCheckRun, RunState
from portal.gpu_checks.presenters import format_measure, format_report_text, metric_title
from tests.api.conftest import Api, problem
from tests.factories import make_token, node_info, simulated_pool
from tests.gpu_checks.helpers import answer, checked_pool, commands, only, unavailable
from tests.gpu_checks.helpers import tell as tell_portal

pytestmark = pytest.mark.django_db


@pytest.fixture
def h100(catalog) -> Device:
    checked_pool(node_info(gpus=2))
    return Device.objects.order_by("index")[0]


@pytest.fixture
def operator(with_token, olga) -> Api:
    return Api(with_token(olga))


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (4123.4, "GB/s", "4\u202f123 GB/s"),
        (512.34, "W", "512.3 W"),
        (0.256, "", "0.26"),
        (66.0, "°C", "66 °C"),
    ],
)
def test_values_use_common_number_formats(value: float, unit: str, words: str):
    assert format_measure(value, unit) == words


def test_collective_metric_names_gpu_count_and_library():
    assert metric_title("all_reduce_bus_gb_s:3:2.32.3") == "Sum over 3 GPUs (NCCL 2.32.3)"
    assert metric_title("gemm_bf16_tflops") == "BF16 matrix product"
    assert metric_title("gemm_bf16_burst_tflops") == "BF16 matrix product (cold)"
    assert metric_title("gemm_int8_own_tops") == "INT8 matrix product (own kernel)"
    assert metric_title("joint_burn_percent:3") == "Speed while 3 GPUs are busy"
    told = "all_reduce_bus_gb_s:3:2.32.3 288 GB/s is below the baseline limit of 306"
    assert (
        format_report_text(told)
        == "Sum over 3 GPUs (NCCL 2.32.3) 288 GB/s is below the baseline limit of 306"
    )


def text(response) -> str:
    return " ".join(unescape(response.content.decode()).split())


def test_check_is_requested_followed_and_read_over_rest(operator, h100, sent):
    made = operator.post("gpu-checks", {"device": h100.uuid, "level": "standard"})
    assert made.status_code == 202, made.content
    run = made.json()
    assert (run["state"], run["verdict"], run["node"], run["simulated"]) == ("queued", "", "node-1", False)
    again = operator.post("gpu-checks", {"device": str(h100.pk), "level": "standard"}).json()
    assert again["id"] == run["id"]
    command = only(sent)
    results.apply_progress(
        run_id=command.run, lease=command.lease, progress={"phase": "start", "test": "address", "done": 2}
    )
    seen = operator.get(f"gpu-checks/{run['id']}").json()
    assert (seen["state"], seen["progress"]["test"]) == ("running", "address")
    assert answer(command)
    done = operator.get(f"gpu-checks/{run['id']}").json()
    assert (done["state"], done["verdict"], done["report"]["uuid"]) == ("done", "pass", h100.uuid)
    schema = operator.get("schemas/gpu-check").json()
    jsonschema.validate(done["report"], schema)
    listed = operator.get(f"gpu-checks?device={h100.pk}&verdict=pass").json()["results"]
    assert [each["id"] for each in listed] == [run["id"]] and "report" not in listed[0]
    assert operator.get("gpu-checks?verdict=fail").json()["results"] == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"device": "GPU-none"}, 404, "not_found"),
        ({"device": "0" * 8}, 404, "not_found"),
        ({}, 400, "invalid"),
        ({"device": "GPU-none", "level": "deep"}, 400, "invalid"),
        ({"device": "GPU-none", "wrong": 1}, 400, "invalid"),
    ],
)
def test_invalid_requests_are_refused_with_the_reason(operator, h100, body, status, code):
    problem(operator.post("gpu-checks", body), status, code)


def test_another_level_is_refused_while_a_check_is_open(operator, h100, sent):
    run = operator.post("gpu-checks", {"device": h100.uuid}).json()
    refused = problem(
        operator.post("gpu-checks", {"device": h100.uuid, "level": "extended"}), 409, "check_under_way"
    )
    assert "is in progress" in refused["detail"] and refused["next_action"]
    assert operator.post(f"gpu-checks/{run['id']}/cancel").json()["state"] == "lost"
    problem(operator.post(f"gpu-checks/{run['id']}/cancel"), 409, "conflict")


def test_scrub_can_be_requested_over_rest(operator, h100, sent):
    made = operator.post("gpu-checks", {"device": h100.uuid, "kind": "scrub"}).json()
    assert made["kind"] == "scrub" and only(sent).kind == "scrub"


@pytest.mark.django_db(transaction=True)
async def test_stream_sends_each_step_and_ends_with_the_verdict(olga, sent, catalog, monkeypatch):
    await sync_to_async(checked_pool)(node_info(gpus=1))
    device = await Device.objects.aget()
    run = await sync_to_async(runs.request_check)(actor=olga, device_id=device.pk)
    command = only(sent)
    channels = []

    # These run in a thread of the stream's, which keeps no connection to the database.
    def begin():
        results.apply_progress(
            run_id=command.run, lease=command.lease, progress={"phase": "start", "test": "copy"}
        )
        connection.close()

    def end():
        answer(command)
        connection.close()

    async def hints(channel, *, ends_with, **_):
        channels.append(channel)
        yield True
        await sync_to_async(begin)()
        yield True
        await sync_to_async(end)()
        yield True

    monkeypatch.setattr(live, "hints", hints)
    _, secret = await sync_to_async(make_token)(olga)
    told = await AsyncClient().get(
        f"/api/v1/gpu-checks/{run.pk}/stream", headers={"Authorization": f"Bearer {secret}"}
    )
    assert told["Content-Type"] == "text/event-stream"
    lines = b"".join([chunk async for chunk in told]).decode().splitlines()
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [each["state"] for each in data] == ["queued", "running", "done"]
    assert (data[-1]["verdict"], data[-1]["check"]) == ("pass", str(run.pk))
    assert channels == [live.check_channel(run.pk)]


def test_operator_starts_a_check_on_the_device_page_and_reads_the_result(olga, bob, as_user, h100, sent):
    url = f"/gpus/devices/{h100.pk}/checks/"
    assert as_user(bob).post(url, {"level": "quick"}).status_code == 403
    where = as_user(olga).post(url, {"level": "quick"}).url
    assert "Waiting for the node" in text(as_user(bob).get(where))
    command = only(sent)
    results.apply_progress(
        run_id=command.run,
        lease=command.lease,
        progress={"phase": "start", "test": "exact_bf16", "done": 4, "total": 11},
    )
    page = text(as_user(bob).get(where))
    assert "Test 5 of 11" in page and "Exact BF16 product, bit by bit" in page
    assert answer(command, "slow_memory")
    page = text(as_user(bob).get(where))
    assert "Degraded" in page and "Memory copy" in page and "at least" in page
    assert "hx-trigger" not in page.split('id="check"')[1][:40]
    assert "first value" in page
    as_user(olga).post(url, {"level": "quick"})
    answer(only(sent))
    last = GpuCheckRun.objects.order_by("-created_at")[0]
    page = as_user(olga).get(f"/gpus/checks/{last.pk}/").content.decode()
    assert 'class="sparkline"' in page and "Check again" in page


def test_queued_run_can_be_cancelled_on_its_page(olga, as_user, h100, sent):
    where = as_user(olga).post(f"/gpus/devices/{h100.pk}/checks/", {"kind": "scrub"}).url
    assert "Scrub of GPU 0" in text(as_user(olga).get(where))
    as_user(olga).post(where)
    assert GpuCheckRun.objects.get().state == RunState.LOST
    assert "Cancelled before the start" in text(as_user(olga).get(where))


def test_unavailable_check_names_the_library_and_the_fix(olga, as_user, h100, sent):
    where = as_user(olga).post(f"/gpus/devices/{h100.pk}/checks/", {"level": "quick"}).url
    command = only(sent)
    assert tell_portal(command, report=unavailable(command))
    page = text(as_user(olga).get(where))
    assert "The CUDA bindings are missing." in page and "Install it." in page and "Inconclusive" in page


def test_checks_block_refreshes_and_redirects_without_htmx(olga, as_user, h100, sent):
    client = as_user(olga)
    url = f"/gpus/devices/{h100.pk}/checks/"
    assert client.get(url).url == f"/gpus/devices/{h100.pk}/"
    part = client.get(url, headers={"HX-Request": "true"})
    assert "Not checked yet." in text(part) and "every 30s" in text(part)
    client.post(url, {"level": "quick"})
    assert "every 2s" in text(client.get(url, headers={"HX-Request": "true"}))


def test_simulated_check_is_marked_everywhere(olga, as_user, operator, catalog, sent, tmp_path):
    simulated_pool(str(tmp_path), fault_slow_memory="sim-001:0")
    found = Device.objects.get(node__name="sim-001", index=0)
    made = operator.post("gpu-checks", {"device": found.uuid}).json()
    assert made["simulated"]
    for message in [*sent.take("node.gpu_check")]:
        sent.deliver(message)
    sent.run()
    seen = operator.get(f"gpu-checks/{made['id']}").json()
    assert (seen["state"], seen["simulated"], seen["report"]["simulated"]) == ("done", True, True)
    assert seen["verdict"] == "degraded" and "imulated" in seen["summary"]
    page = text(as_user(olga).get(f"/gpus/checks/{made['id']}/"))
    assert "says nothing about real hardware" in page
    assert not commands(sent)


def test_operators_set_when_a_pool_is_checked(olga, bob, as_user, operator, h100):
    url = "/pools/this-machine/"
    form = {
        "check_every_hours": "24",
        "check_level": "quick",
        "hand_out_max_age_hours": "0",
        "scrub_required": "on",
    }
    assert as_user(bob).post(f"{url}checks/", form).status_code == 403
    assert as_user(olga).post(f"{url}checks/", form).url == url
    pool = Pool.objects.get(slug="this-machine")
    assert (pool.check_every_hours, pool.check_level, pool.hand_out_max_age_hours) == (24, "quick", 0)
    assert (pool.check_required, pool.scrub_required) == (False, True)
    told = text(as_user(bob).get(url))
    assert "every 24 hours" in told and "No check before a start" in told
    page = as_user(olga)
    page.post(f"{url}checks/", form | {"check_every_hours": "often"})
    assert "Hours must be whole numbers" in text(page.get(url))
    assert operator.put("pools/this-machine/checks", {"check_required": False}).json() == {
        "check_every_hours": 168,
        "check_level": "standard",
        "hand_out_max_age_hours": 24,
        "check_required": False,
        "scrub_required": True,
        "mig_repartition": False,
    }
    problem(operator.put("pools/this-machine/checks", {"check_every_hours": -1}), 400, "invalid")
    problem(operator.put("pools/this-machine/checks", {"check_level": "deep"}), 400, "invalid")
    problem(operator.put("pools/none/checks", {}), 404, "not_found")
