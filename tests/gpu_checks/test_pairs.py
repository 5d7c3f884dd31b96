"""Link checks between two nodes: refusals, reservations and results of both ends."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from portal.catalog.models import Flavor
from portal.common.actors import SYSTEM
from portal.common.errors import NotAllowed, NotFound, StateConflict
from portal.common.events.models import Notification
from portal.fleet.inventory.cordons import cordon_device
from portal.fleet.inventory.models import AllocatedDevice, Device, Node, Pool
from portal.gpu_checks import lost_runs, pairs, resets, runs
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.kinds.pair import wrong_words
from portal.gpu_checks.models import CheckVerdict, GpuCheckRun, RunState
from portal.scheduling import capacity
from portal.scheduling.engine.codes import PlacementCode
from provisioning.check_messages import CheckCommand
from provisioning.gpu.check.assess import THIRD_NODE
from provisioning.gpu.host import RdmaPort
from provisioning.registry import traits_of
from provisioning.traits import DeviceChecks
from tests import sites
from tests.factories import MachineFactory, node_info
from tests.gpu_checks.helpers import checked_pool, commands, fresh, real_report, run_of, tell

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog
ADDRESS = "192.0.2.11"
PORT = RdmaPort("mlx5_0", 1, True, "active", "InfiniBand", 400_000, "0000:1a:00.0", 0)


def rdma_node(name: str, *, gpus: int = 2, rate: int = 400_000, **fields: Any):
    port = {**asdict(PORT), "rate_mbit_s": rate}
    return node_info(name, gpus=gpus, provides=("rdma",), facts={"rdma": [port]}, **fields)


@pytest.fixture
def nodes(catalog, settings) -> list[Node]:
    """Three nodes with RDMA and two passed GPUs each; the first is the portal's machine."""
    settings.BERTH_NODES_ADDRESS = ADDRESS
    pool = checked_pool(rdma_node("node-1"), rdma_node("node-2", rate=200_000), rdma_node("node-3"))
    Pool.objects.filter(pk=pool.pk).update(config={**pool.config, "node": "node-1"})
    Device.objects.update(passed_at=timezone.now())
    return list(Node.objects.order_by("name"))


def ask(node: Node, other: Node, actor: Any = SYSTEM) -> GpuCheckRun:
    return pairs.request_link_check(actor=actor, node_id=node.pk, with_node_id=other.pk)


@pytest.fixture
def end_commands(nodes, sent, django_capture_on_commit_callbacks) -> tuple[CheckCommand, CheckCommand]:
    """The pending commands of a check of node-1 and node-2, rank 0 first."""
    with django_capture_on_commit_callbacks(execute=True):
        ask(nodes[0], nodes[1])
    found = sorted(commands(sent), key=lambda each: each.meeting.rank)
    assert len(found) == 2
    return found[0], found[1]


def link_report(
    command: CheckCommand, *, wrong: int = 0, skipped: str = "", **changes: Any
) -> dict[str, Any]:
    """The report of an end: correct sums, wrong words, or none."""
    report = copy.deepcopy(real_report(command))
    (test,) = [each for each in report["tests"] if each["name"] == "two_nodes"]
    severity = verdict = ""
    if wrong:
        test |= {"status": "warned", "errors": wrong, "text": f"{wrong} wrong words in sums. {THIRD_NODE}"}
        severity, action, verdict = "degraded", "inspect", "degraded"
    elif skipped:
        test |= {"status": "skipped", "errors": None, "text": skipped, "judgements": [], "measures": {}}
        severity, action, verdict = "inconclusive", "retry", "inconclusive"
    if severity:
        finding = {"code": "test_two_nodes", "severity": severity, "text": test["text"], "action": action}
        report |= {
            "findings": [finding], "verdict": verdict, "action": action, "summary": test["text"],
            "exit_code": 1 if wrong else 3,
        }  # fmt: skip
    return report | changes


@pytest.fixture
def end(django_capture_on_commit_callbacks):
    def answered(command: CheckCommand, *wrong: str, **fields: Any) -> GpuCheckRun:
        report = real_report(command, *wrong) if wrong else link_report(command, **fields)
        with django_capture_on_commit_callbacks(execute=True):
            assert tell(command, report=report)
        return run_of(command)

    return answered


def notices() -> list[Notification]:
    return list(Notification.objects.filter(kind__startswith="device.pair_"))


def refused(node: Node, other: Node) -> CheckCode:
    """The refusal's code, for the request and for the page's offer."""
    with pytest.raises(StateConflict) as error:
        ask(node, other)
    assert error.value.code == "link_not_checkable"
    reason = pairs.refusal(Node.objects.get(pk=node.pk), Node.objects.get(pk=other.pk))
    assert reason is not None and error.value.reason == reason
    assert not GpuCheckRun.objects.filter(kind="pair").exists() or reason.code in (
        CheckCode.LINK_PORTS_IN_USE, CheckCode.LINK_NODE_BUSY, CheckCode.LINK_NO_IDLE_GPU,
    )  # fmt: skip
    return reason.code


# --- requests to both nodes -----------------------------------------------------------------------


def test_both_ends_get_the_same_port(nodes, end_commands):
    first, second = end_commands
    assert [each.kind for each in end_commands] == ["pair", "pair"]
    assert [each.uuid for each in end_commands] == ["GPU-node-1-0", "GPU-node-2-0"]
    ends = [(each.meeting.rank, each.meeting.address, each.meeting.port) for each in end_commands]
    assert ends == [(0, ADDRESS, 29400), (1, ADDRESS, 29400)]
    assert (first.meeting.partner, second.meeting.partner) == ("node-2", "node-1")
    # The slower of both ports: 200 Gbit/s.
    assert {each.meeting.port_gb_s for each in end_commands} == {25.0}
    assert {each.meeting.transport for each in end_commands} == {"rdma"}
    assert run_of(first).partner == run_of(second) and run_of(second).partner == run_of(first)


def test_node_with_an_address_is_the_meeting_point(nodes, sent):
    run = ask(nodes[1], nodes[0])
    assert run.device.node == nodes[1]
    assert (run.plan["meeting"]["rank"], run.plan["meeting"]["address"]) == (1, ADDRESS)


def test_joined_machine_is_reached_at_its_gateway_host(nodes, settings, sent):
    settings.BERTH_NODES_ADDRESS = ""
    assert refused(nodes[0], nodes[1]) == CheckCode.LINK_NO_ADDRESS
    MachineFactory(pool=nodes[0].pool, name="node-2", gateway_host="192.0.2.22")
    assert ask(nodes[0], nodes[1]).plan["meeting"]["address"] == "192.0.2.22"


def test_revoked_machine_is_not_a_meeting_point(nodes, settings):
    settings.BERTH_NODES_ADDRESS = ""
    MachineFactory(pool=nodes[0].pool, name="node-2", gateway_host="192.0.2.22", state="revoked")
    assert refused(nodes[0], nodes[1]) == CheckCode.LINK_NO_ADDRESS


def test_concurrent_checks_use_distinct_ports(nodes, settings, sent):
    settings.BERTH_CHECK_PORTS = range(29400, 29402)
    found = [ask(nodes[0], other).plan["meeting"]["port"] for other in nodes[1:]]
    assert found == [29400, 29401]
    settings.BERTH_CHECK_PORTS = range(29400, 29401)
    Device.objects.update(checking=False)
    GpuCheckRun.objects.filter(plan__meeting__port=29401).update(state=RunState.DONE)
    assert refused(nodes[0], nodes[2]) == CheckCode.LINK_PORTS_IN_USE


def test_repeated_request_returns_the_open_run(nodes, sent):
    run = ask(nodes[0], nodes[1])
    assert ask(nodes[0], nodes[1]) == run
    assert ask(nodes[1], nodes[0]) == run.partner
    assert GpuCheckRun.objects.count() == 2


def test_both_devices_are_reserved_and_released(nodes, end_commands, end):
    mine = Device.objects.filter(uuid__in=[each.uuid for each in end_commands])
    assert set(mine.values_list("checking", flat=True)) == {True}
    shown = [d for state in next(iter(capacity.load().values())).nodes for d in state.devices if d.unusable]
    assert {each.uuid for each in shown} == {each.uuid for each in end_commands}
    assert {each.unusable.code for each in shown} == {PlacementCode.DEVICE_CHECKING}
    for each in end_commands:
        end(each)
    assert not Device.objects.filter(checking=True).exists()


def test_reserved_devices_refuse_checks_resets_and_cordons(nodes, end_commands):
    for command in end_commands:
        device = Device.objects.get(uuid=command.uuid)
        with pytest.raises(StateConflict) as error:
            runs.request_check(actor=SYSTEM, device_id=device.pk)
        assert error.value.code == "check_under_way" and "link check" in error.value.sentence
        cordon_device(actor=SYSTEM, device_id=device.pk, reason="looked at")
        with pytest.raises(StateConflict):
            resets.request_reset(actor=SYSTEM, device_id=device.pk)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"provides": []}, CheckCode.LINK_NO_RDMA),
        ({"online": False}, CheckCode.NODE_NOT_ANSWERING),
    ],
    ids=["no port up", "offline"],
)  # fmt: skip
@pytest.mark.parametrize("which", [0, 1])
def test_unsuitable_nodes_are_refused(nodes, changed, code, which):
    Node.objects.filter(pk=nodes[which].pk).update(**changed)
    assert refused(nodes[0], nodes[1]) == code


@pytest.mark.parametrize(
    "changed",
    [
        {"passed_at": None}, {"healthy": False}, {"present": False}, {"cordoned": True}, {"mig_mode": True},
        {"unscrubbed": True}, {"checking": True}, {"kind": "mig"},
    ],
    ids=str,
)  # fmt: skip
def test_unsuitable_devices_are_not_chosen(nodes, changed):
    Device.objects.filter(uuid="GPU-node-2-0").update(**changed)
    assert ask(nodes[0], nodes[1]).partner.device.uuid == "GPU-node-2-1"
    GpuCheckRun.objects.all().delete()
    Device.objects.filter(node=nodes[0]).update(checking=False)
    Device.objects.filter(node=nodes[1]).update(**{"checking": False, **changed})
    assert refused(nodes[0], nodes[1]) == CheckCode.LINK_NO_IDLE_GPU


def test_allocated_device_is_not_chosen(nodes, make, alice):
    Pool.objects.update(hand_out_max_age_hours=0)
    one = Flavor.objects.filter(accelerator_count=1).order_by("slug").first()
    for _ in range(2):
        assert make(alice, one.slug)
    held = AllocatedDevice.objects.filter(active=True).values_list("device__node__name", flat=True)
    (full,) = {name for name in held if list(held).count(name) == 2}
    node = Node.objects.get(name=full)
    other = next(each for each in nodes if each != node)
    assert refused(node, other) == CheckCode.LINK_NO_IDLE_GPU


def test_link_to_itself_or_to_another_pool_is_refused(nodes):
    assert refused(nodes[0], nodes[0]) == CheckCode.LINK_NEEDS_TWO_NODES
    checked_pool(rdma_node("elsewhere"), slug="another")
    assert refused(nodes[0], Node.objects.get(name="elsewhere")) == CheckCode.LINK_NEEDS_TWO_NODES


def test_node_at_its_check_limit_is_refused(nodes, sent, monkeypatch):
    monkeypatch.setattr(runs, "AT_ONCE_ON_NODE", 1)
    runs.request_check(actor=SYSTEM, device_id=Device.objects.get(uuid="GPU-node-2-0").pk)
    assert refused(nodes[0], nodes[1]) == CheckCode.LINK_NODE_BUSY


def test_pool_without_node_workers_is_refused(nodes, monkeypatch):
    without = replace(traits_of("local"), device_checks=DeviceChecks.NONE)
    monkeypatch.setattr(Pool, "traits", without)
    assert refused(nodes[0], nodes[1]) == CheckCode.LINK_NOT_BY_DRIVER


def test_link_checks_need_an_operator_and_existing_nodes(nodes, alice, olga):
    with pytest.raises(NotAllowed):
        ask(nodes[0], nodes[1], alice)
    Node.objects.filter(pk=nodes[1].pk).update(retired=True)
    with pytest.raises(NotFound):
        ask(nodes[0], nodes[1], olga)


# --- results --------------------------------------------------------------------------------------


def test_correct_sums_do_not_pass_the_device(nodes, end_commands, end, olga):
    proven = Device.objects.get(uuid=end_commands[0].uuid)
    Device.objects.filter(pk=proven.pk).update(warning="a link is slow")
    for each in end_commands:
        run = end(each)
        assert (run.state, run.verdict) == (RunState.DONE, CheckVerdict.PASS)
        assert run.measures["between_nodes_gb_s"]["value"] == 22.0
    after = fresh(proven)
    assert (after.passed_at, after.warning) == (proven.passed_at, "a link is slow")
    assert not notices()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_wrong_words_at_both_ends_fail_no_device(nodes, end_commands, end, olga, order):
    for each in order:
        end(end_commands[each], wrong=7)
    for command in end_commands:
        run = run_of(command)
        assert (run.verdict, run.recovery) == (CheckVerdict.DEGRADED, "inspect")
        assert THIRD_NODE in run.summary
    assert (
        not Device.objects.filter(cordoned=True).exists() and not Node.objects.filter(cordoned=True).exists()
    )
    assert not Device.objects.exclude(warning="").exists()
    (notice,) = notices()
    assert notice.title == "The link between node-1 and node-2 is degraded"
    assert notice.body.startswith("Both nodes received wrong data.") and THIRD_NODE in notice.body


@pytest.mark.parametrize("wrong_at", [0, 1])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_wrong_words_at_one_end_are_reported_there(nodes, end_commands, end, olga, wrong_at, order):
    for each in order:
        end(end_commands[each], wrong=7 if each == wrong_at else 0)
    bad, good = (f"node-{wrong_at + 1}", f"node-{2 - wrong_at}")
    right = run_of(end_commands[1 - wrong_at])
    assert right.verdict == CheckVerdict.DEGRADED
    assert right.summary.startswith(f"This end passed. The other end, {bad}, reported: 7 wrong words")
    assert (wrong_words(run_of(end_commands[wrong_at])), wrong_words(right)) == (7, 0)
    (notice,) = notices()
    assert notice.body.startswith(f"Only {bad} received wrong data, {good} did not.")
    assert not Device.objects.filter(cordoned=True).exists()


def test_missing_partner_gives_no_verdict(nodes, end_commands, end, olga):
    text = "Not run. Could not connect to node-2 at 192.0.2.11, port 29400 within 150 s."
    end(end_commands[0], skipped=text)
    run = end(end_commands[1])
    assert (run_of(end_commands[0]).verdict, run.verdict) == (
        CheckVerdict.INCONCLUSIVE,
        CheckVerdict.INCONCLUSIVE,
    )
    assert text in run.summary
    (notice,) = notices()
    assert (notice.kind, notice.title) == (
        "device.pair_inconclusive", "The link between node-1 and node-2 could not be checked",
    )  # fmt: skip
    assert not Device.objects.filter(cordoned=True).exists()


def test_error_of_one_end_cordons_only_that_device(nodes, end_commands, end, olga):
    end(end_commands[0])
    end(end_commands[1], "ecc")
    out = Device.objects.get(cordoned=True)
    assert (out.uuid, out.cordon_cause) == (end_commands[1].uuid, "check")
    assert run_of(end_commands[0]).verdict == CheckVerdict.INCONCLUSIVE


def test_silent_node_makes_the_other_end_inconclusive(
    nodes, end_commands, end, olga, clock, sent, django_capture_on_commit_callbacks
):
    end(end_commands[0])
    clock.shift(runs.BEGIN_WITHIN_S + 1)
    with django_capture_on_commit_callbacks(execute=True):
        lost_runs.sweep_lost()
    lost = run_of(end_commands[1])
    assert lost.state == RunState.LOST and not commands(sent), "it is not sent again"
    assert run_of(end_commands[0]).verdict == CheckVerdict.INCONCLUSIVE
    assert len(notices()) == 1
    assert not Device.objects.filter(checking=True).exists()


def test_waiting_end_is_cancelled_with_the_other(nodes, end_commands, end):
    GpuCheckRun.objects.filter(pk=end_commands[1].run).update(lease="", lease_expires_at=None)
    end(end_commands[0], skipped="Not run. Could not connect to node-2.")
    waiting = run_of(end_commands[1])
    assert waiting.state == RunState.LOST and "node-1 ended its part" in waiting.summary
    assert not Device.objects.filter(checking=True).exists()


def test_both_ends_are_cancelled_together_before_they_start(nodes, olga, sent):
    run = ask(nodes[0], nodes[1])
    runs.cancel_check(actor=olga, run_id=run.partner_id)
    assert set(GpuCheckRun.objects.values_list("state", flat=True)) == {RunState.LOST}
    assert not Device.objects.filter(checking=True).exists()
    run = ask(nodes[0], nodes[1])
    GpuCheckRun.objects.filter(pk=run.partner_id).update(state=RunState.RUNNING)
    with pytest.raises(StateConflict):
        runs.cancel_check(actor=olga, run_id=run.pk)


def test_deleted_end_does_not_affect_the_other(nodes, end_commands, end):
    GpuCheckRun.objects.filter(pk=end_commands[1].run).delete()
    run = end(end_commands[0])
    assert (run.verdict, run.partner) == (CheckVerdict.PASS, None)


# --- simulated pools ---


def test_simulated_link_checks_are_marked(catalog, olga, sent, end):
    pool = checked_pool(rdma_node("node-1"), rdma_node("node-2"))
    Pool.objects.filter(pk=pool.pk).update(simulated=True, driver="simulated")
    Device.objects.update(passed_at=timezone.now())
    first, second = Node.objects.order_by("name")
    run = ask(first, second, olga)
    assert run.simulated and run.partner.simulated and run.plan["meeting"]["address"] == ""
    for command in commands(sent):
        made = end(command, simulated=True, verdict="inconclusive")
        assert made.verdict == CheckVerdict.PASS and made.summary.startswith(
            "Simulated: 2 of 2 tests passed."
        )
    assert not notices()


# --- REST and pages ---


def test_link_check_over_rest_shows_both_ends(client, nodes, olga, sent, end):
    client.force_login(olga)
    made = client.post(
        f"/api/v1/nodes/{nodes[0].pk}/check-link", {"with_node": str(nodes[1].pk)}, "application/json"
    )
    assert made.status_code == 202, made.json()
    first = made.json()
    assert (first["kind"], first["node"], first["partner_node"]) == ("pair", "node-1", "node-2")
    second = client.get(f"/api/v1/gpu-checks/{first['partner']}").json()
    assert (second["partner"], second["partner_node"]) == (first["id"], "node-1")
    listed = client.get("/api/v1/gpu-checks?kind=pair").json()["results"]
    assert {each["id"] for each in listed} == {first["id"], second["id"]}


def test_rest_refusal_has_a_code_and_a_next_action(client, nodes, olga):
    client.force_login(olga)
    Node.objects.filter(pk=nodes[1].pk).update(provides=[])
    where = f"/api/v1/nodes/{nodes[0].pk}/check-link"
    answer = client.post(where, {"with_node": str(nodes[1].pk)}, "application/json")
    assert answer.status_code == 409
    body = answer.json()
    assert body["code"] == "link_not_checkable" and "node-2 has no active RDMA port" in str(body)
    assert "ibstat" in str(body)


def test_list_query_count_is_constant_with_link_checks(client, nodes, olga, sent):
    client.force_login(olga)

    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            assert client.get("/api/v1/gpu-checks").status_code == 200
        return len(found)

    runs.request_check(actor=SYSTEM, device_id=Device.objects.get(uuid="GPU-node-3-1").pk)
    queries()
    before = queries()
    ask(nodes[0], nodes[1])
    ask(nodes[0], nodes[2])
    assert queries() == before


def test_node_page_offers_suitable_partners(client, nodes, olga, alice, sent):
    where = reverse("fleet:node", args=[nodes[0].pk])
    client.force_login(olga)
    page = client.get(where).content.decode()
    assert "Check link" in page
    assert f'<option value="{nodes[1].pk}">node-2</option>' in page and "node-3</option>" in page
    Device.objects.filter(node=nodes[1]).update(passed_at=None)
    assert "node-2</option>" not in client.get(where).content.decode()
    answer = client.post(
        reverse("gpu_checks:check-link", args=[nodes[0].pk]), {"with_node": str(nodes[2].pk)}
    )
    run = GpuCheckRun.objects.get(device__node=nodes[0])
    assert answer.url == reverse("gpu_checks:check", args=[run.pk])
    page = client.get(answer.url).content.decode()
    assert "Link to node-3" in page and reverse("gpu_checks:check", args=[run.partner_id]) in page
    client.force_login(alice)
    assert "Check link" not in client.get(where).content.decode()
    refused = client.post(
        reverse("gpu_checks:check-link", args=[nodes[0].pk]), {"with_node": str(nodes[1].pk)}
    )
    assert refused.status_code == 403


def test_node_page_explains_missing_partners(client, nodes, olga):
    client.force_login(olga)
    where = reverse("fleet:node", args=[nodes[0].pk])
    Node.objects.exclude(pk=nodes[0].pk).update(provides=[])
    assert "s pool has an active RDMA port" in client.get(where).content.decode()
    Node.objects.update(provides=["rdma"])
    Device.objects.filter(node=nodes[0]).update(passed_at=None)
    page = client.get(where).content.decode()
    assert "node-1 has no idle whole GPU" in page and 'id="with-node"' not in page
    Node.objects.update(provides=[])
    assert "Check link to another node" not in client.get(where).content.decode()


def test_invalid_partner_redirects_to_the_node_page(client, nodes, olga):
    client.force_login(olga)
    where = reverse("gpu_checks:check-link", args=[nodes[0].pk])
    for given in ("", "no-uuid", str(nodes[0].pk)):
        assert client.post(where, {"with_node": given}).url == reverse("fleet:node", args=[nodes[0].pk])
    assert not GpuCheckRun.objects.exists()


def test_node_page_query_count_is_constant(client, nodes, olga, django_assert_max_num_queries):
    client.force_login(olga)
    where = reverse("fleet:node", args=[nodes[0].pk])
    client.get(where)
    with CaptureQueriesContext(connection) as few:
        client.get(where)
    for number in range(4, 9):
        more = Node.objects.create(pool=nodes[0].pool, name=f"node-{number}", provides=["rdma"], online=True)
        Device.objects.create(node=more, uuid=f"GPU-{number}", model="H100", passed_at=timezone.now())
    with django_assert_max_num_queries(len(few)):
        assert "node-8</option>" in client.get(where).content.decode()


def test_both_device_pages_show_the_result(client, nodes, end_commands, end, olga):
    end(end_commands[0], wrong=7)
    end(end_commands[1])
    client.force_login(olga)
    for command, far in zip(end_commands, ("node-2", "node-1"), strict=True):
        device = Device.objects.get(uuid=command.uuid)
        page = client.get(reverse("fleet:device", args=[device.pk])).content.decode()
        assert f"Link to {far}" in page and "7 wrong words" in page
    page = client.get(reverse("gpu_checks:check", args=[end_commands[0].run])).content.decode()
    assert "Link between the nodes" in page and "Check again" in page
