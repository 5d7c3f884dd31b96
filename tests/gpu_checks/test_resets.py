"""Resets of GPUs: refusals, results, following checks, and kills at each stage."""

from __future__ import annotations

from datetime import timedelta
from html import unescape
from typing import Any

import pytest

from portal.common.actors import SYSTEM
from portal.common.errors import NotAllowed, PreconditionFailed, StateConflict
from portal.common.events.models import Event
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.fleet.inventory.cordons import cordon_device, lift_cordon
from portal.fleet.inventory.models import CordonCause, Device, Node, Pool
from portal.gpu_checks import lost_runs, policy, resets, results, runs
from portal.gpu_checks.codes import CheckCode
from portal.gpu_checks.models import CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.check_messages import CheckCommand
from provisioning.gpu.reset import ResetResult, ResetVerdict
from tests import sites
from tests.api.conftest import Api, problem
from tests.factories import node_info, simulated_pool
from tests.gpu_checks.helpers import answer, checked_pool, failure, fresh, only, run_of, scrubbed, tell
from tests.gpu_checks.test_runs import flavor_of_one_gpu, kinds

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog


@pytest.fixture
def gpus(catalog: None) -> list[Device]:
    """Four real GPUs on one node; the first is cordoned by a check that recommends a reset."""
    pool = checked_pool(node_info(gpus=4))
    found = list(Device.objects.filter(node__pool=pool).order_by("index"))
    cordon_by_check(found[0])
    return found


@pytest.fixture
def gpu(gpus: list[Device]) -> Device:
    return fresh(gpus[0])


@pytest.fixture
def operator(with_token: Any, olga: Any) -> Api:
    return Api(with_token(olga))


def cordon_by_check(device: Device, cause: CordonCause = CordonCause.CHECK, recovery: str = "reset") -> None:
    cordon_device(actor=SYSTEM, device_id=device.pk, reason="Rows wait.", cause=cause, recovery=recovery)


def ask(device: Device) -> GpuCheckRun:
    return resets.request_reset(actor=SYSTEM, device_id=device.pk)


def command_of(sent: Any) -> CheckCommand:
    (message,) = sent.take("node.gpu_reset")
    return messages.load(message.kwargs["command"], CheckCommand)


def report_reset(command: CheckCommand, verdict: str, text: str = "So it is.", **fields: Any) -> bool:
    result = ResetResult(command.uuid, ResetVerdict(verdict), text, **fields)
    return tell(command, report=messages.dump(result))


def refused(device: Device) -> Any:
    with pytest.raises(StateConflict) as found:
        ask(device)
    assert found.value.next_action
    assert not GpuCheckRun.objects.filter(kind=CheckKind.RESET).exists()
    return found.value.reason.code


def test_check_after_a_reset_lifts_the_cordon(gpu: Device, sent: Any) -> None:
    Device.objects.filter(pk=gpu.pk).update(facts={"pci_bus_id": "0000:1b:00.0"})
    run = ask(gpu)
    assert ask(gpu) == run
    assert (run.kind, run.state, fresh(gpu).checking) == (CheckKind.RESET, RunState.QUEUED, True)
    command = command_of(sent)
    assert (command.kind, command.uuid, command.bus) == ("reset", gpu.uuid, "0000:1b:00.0")
    assert report_reset(command, "done", "It was reset.")
    run.refresh_from_db()
    assert (run.state, run.verdict, run.summary) == (RunState.DONE, CheckVerdict.PASS, "It was reset.")
    assert fresh(gpu).cordoned, "nobody knows yet what it is worth"
    following = only(sent)
    assert (following.kind, following.level) == ("check", "standard")
    assert answer(following)
    assert not fresh(gpu).cordoned
    assert kinds(gpu)[1:3] == ["device.reset_asked", "device.reset_done"]


def test_device_cordoned_by_a_scrub_is_scrubbed(gpus: list[Device], sent: Any) -> None:
    cordon_by_check(gpus[1], CordonCause.SCRUB)
    ask(gpus[1])
    assert report_reset(command_of(sent), "done")
    following = only(sent)
    assert following.kind == "scrub" and scrubbed(following)
    assert not fresh(gpus[1]).cordoned


def test_check_lost_by_a_killed_process_is_requested_by_the_policy(
    gpu: Device, sent: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the result and the request of the check."""
    monkeypatch.setattr(resets, "check_again", lambda device: None)
    ask(gpu)
    assert report_reset(command_of(sent), "done")
    assert fresh(gpu).recovery == "retry" and fresh(gpu).cordoned
    clock.shift(policy.RECHECK_AFTER + timedelta(seconds=1))
    policy.run()
    assert any(run.device == gpu for run in GpuCheckRun.objects.filter(kind=CheckKind.CHECK))


@pytest.mark.parametrize(
    ("said", "verdict", "advice"),
    [
        ("refused", CheckVerdict.INCONCLUSIVE, "reset"),
        ("failed", CheckVerdict.FAIL, "reboot"),
        ("hung", CheckVerdict.HUNG, "reboot"),
    ],
)
def test_unfinished_reset_keeps_the_cordon_with_the_next_step(
    gpu: Device, sent: Any, said: str, verdict: str, advice: str
) -> None:
    run = ask(gpu)
    assert report_reset(command_of(sent), said, "Somebody has it open.")
    run.refresh_from_db()
    now = fresh(gpu)
    assert (run.verdict, run.recovery, run.summary) == (verdict, advice, "Somebody has it open.")
    assert (now.cordoned, now.checking, now.recovery) == (True, False, advice)
    assert not GpuCheckRun.objects.exclude(pk=run.pk).exists()


def test_reset_keeps_an_operator_cordon(gpus: list[Device], sent: Any) -> None:
    cordon_by_check(gpus[1], CordonCause.OPERATOR, "")
    ask(gpus[1])
    assert report_reset(command_of(sent), "failed", "It failed.")
    now = fresh(gpus[1])
    assert (now.cordon_cause, now.cordon_reason, now.recovery) == ("operator", "Rows wait.", "reboot")


def test_report_about_another_gpu_is_refused(gpu: Device, gpus: list[Device], sent: Any) -> None:
    ask(gpu)
    command = command_of(sent)
    other = ResetResult(gpus[1].uuid, ResetVerdict.DONE, "It was reset.")
    assert tell(command, report=messages.dump(other))
    assert run_of(command).verdict == CheckVerdict.INCONCLUSIVE
    ask(gpu)
    pretended = command_of(sent)
    assert report_reset(pretended, "done", simulated=True)
    assert run_of(pretended).verdict == CheckVerdict.INCONCLUSIVE
    ask(gpu)
    hung = command_of(sent)
    assert tell(hung, failure=failure("hung"))
    assert (run_of(hung).verdict, fresh(gpu).recovery) == (CheckVerdict.HUNG, "reboot")
    assert report_reset(hung, "done") is False, "it has ended"


# --- refusals -------------------------------------------------------------------------------------


def test_reset_needs_a_cordon_or_a_recommendation(gpus: list[Device], sent: Any, alice: Any) -> None:
    with pytest.raises(NotAllowed):
        resets.request_reset(actor=alice, device_id=gpus[0].pk)
    assert refused(gpus[1]) == CheckCode.RESET_NOT_ADVISED
    GpuCheckRun.objects.create(
        device=gpus[1],
        cause="operator",
        state=RunState.DONE,
        verdict="degraded",
        recovery="drain_and_reset",
    )
    ask(gpus[1])
    assert fresh(gpus[1]).cordoned, "it is out from now on"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"kind": "mig", "mig_profile": "1g.10gb"}, CheckCode.RESET_OF_INSTANCE),
        ({"mig_mode": True}, CheckCode.RESET_LOSES_INSTANCES),
        ({"present": False}, CheckCode.DEVICE_GONE),
    ],
)
def test_devices_that_cannot_be_reset(gpu: Device, fields: dict[str, Any], code: str) -> None:
    Device.objects.filter(pk=gpu.pk).update(**fields)
    assert refused(gpu) == code


def test_offline_node_cannot_reset(gpu: Device) -> None:
    Node.objects.update(online=False)
    assert refused(gpu) == CheckCode.NODE_NOT_ANSWERING


def test_reset_is_refused_during_a_check_and_while_in_use(
    gpu: Device, gpus: list[Device], sent: Any, make: Any, alice: Any
) -> None:
    check = runs.request_check(actor=SYSTEM, device_id=gpu.pk)
    assert refused(gpu) == CheckCode.CHECK_UNDER_WAY
    runs.cancel_check(actor=SYSTEM, run_id=check.pk)
    Pool.objects.update(hand_out_max_age_hours=0)
    workspace = make(alice, flavor_of_one_gpu())
    taken = Device.objects.get(allocated__allocation__workspace=workspace)
    cordon_by_check(taken)
    assert refused(taken) == CheckCode.DEVICE_IN_USE


def test_outdated_form_is_refused(gpu: Device) -> None:
    seen = frozenset({resets.etags.version_of(resets.displayed_state(gpu))})
    cordon_by_check(gpu, recovery="reboot")
    with pytest.raises(PreconditionFailed):
        resets.request_reset(actor=SYSTEM, device_id=gpu.pk, expected=seen)


# --- alone on its node, and kills ------------------------------------------------------------------


def test_reset_runs_alone_on_its_node(gpu: Device, gpus: list[Device], sent: Any) -> None:
    runs.request_check(actor=SYSTEM, device_id=gpus[1].pk)
    running = only(sent)
    ask(gpu)
    assert not sent.of("node.gpu_reset"), "a check has the driver's library open"
    assert answer(running)
    command = command_of(sent)
    runs.request_scrub(actor=SYSTEM, device_id=gpus[2].pk)
    assert not sent.of("node.gpu_scrub")
    assert report_reset(command, "refused")
    assert len(sent.of("node.gpu_scrub")) == 1


def test_reset_killed_before_start_is_sent_again_and_then_lost(gpu: Device, sent: Any, clock: Any) -> None:
    run = ask(gpu)
    leases = {command_of(sent).lease}
    for _ in range(2):
        clock.shift(runs.BEGIN_WITHIN_S + 1)
        assert lost_runs.sweep_lost() == 0
        leases.add(command_of(sent).lease)
    clock.shift(runs.BEGIN_WITHIN_S + 1)
    assert lost_runs.sweep_lost() == 1
    assert len(leases) == 3
    assert_lost(run, gpu)


def test_reset_killed_while_running_is_lost_and_never_repeated(gpu: Device, sent: Any, clock: Any) -> None:
    run = ask(gpu)
    command = command_of(sent)
    assert results.apply_progress(run_id=run.pk, lease=command.lease, progress={"phase": "prepare"})
    # A cordon lifted meanwhile was the earlier one.
    lift_cordon(actor=SYSTEM, device_id=gpu.pk)
    clock.shift(runs.SILENT_S + 1)
    assert lost_runs.sweep_lost() == 1
    assert not sent.of("node.gpu_reset")
    assert_lost(run, gpu)
    assert report_reset(command, "done") is False, "it comes too late"


def assert_lost(run: GpuCheckRun, device: Device) -> None:
    run.refresh_from_db()
    now = fresh(device)
    assert (run.state, run.verdict) == (RunState.LOST, "")
    assert (now.cordoned, now.checking, now.recovery) == (True, False, "reset")
    assert "its outcome is unknown" in now.cordon_reason
    assert "device.reset_lost" in kinds(device)


# --- pages and REST --------------------------------------------------------------------------------


def text(response: Any) -> str:
    return " ".join(unescape(response.content.decode()).split())


def test_reset_over_rest_is_idempotent_by_key(
    operator: Api, gpu: Device, gpus: list[Device], sent: Any
) -> None:
    refusal = problem(operator.post(f"devices/{gpus[1].pk}/reset"), 409, "conflict")
    assert refusal["reason"]["code"] == "reset_not_advised"
    made = operator.post(f"devices/{gpu.pk}/reset", **{"Idempotency-Key": "at-three"})
    assert made.status_code == 202, made.content
    assert (made.json()["kind"], made.json()["requester"]) == ("reset", "olga")
    again = operator.post(f"devices/{gpu.pk}/reset", **{"Idempotency-Key": "at-three"})
    assert again.json()["id"] == made.json()["id"] and len(sent.of("node.gpu_reset")) == 1
    asked = Event.objects.get(kind="device.reset_asked")
    assert (asked.actor_label, asked.data["run"]) == ("olga", made.json()["id"])
    assert operator.post("gpu-checks", {"device": gpu.uuid, "kind": "reset"}).status_code == 400


def test_page_asks_for_confirmation_with_affected_workspaces(
    client: Any, olga: Any, alice: Any, gpu: Device, gpus: list[Device], sent: Any, make: Any
) -> None:
    Device.objects.update(island="nvlink-0")
    Pool.objects.update(hand_out_max_age_hours=0)
    workspace: Workspace = make(alice, flavor_of_one_gpu())
    client.force_login(olga)
    link = f"/gpus/devices/{gpu.pk}/reset/"
    assert link in client.get(f"/gpus/devices/{gpu.pk}/").content.decode()
    page = client.get(link)
    shown = text(page)
    assert "links to GPU 1, GPU 2, GPU 3" in shown and "sudo systemctl reboot" in shown
    assert f"{workspace.name} of alice" in shown, "a reboot would end it"
    asked = client.post(link, {"version": page.context["hidden"]["version"]})
    run = GpuCheckRun.objects.get(kind=CheckKind.RESET)
    assert asked.url == f"/gpus/checks/{run.pk}/"
    assert "Waiting for the node" in text(client.get(asked.url))
    command = command_of(sent)
    results.apply_progress(run_id=run.pk, lease=command.lease, progress={})
    assert "Resetting" in text(client.get(asked.url))
    assert report_reset(command, "failed", "The reset failed.")
    assert "Drain and reboot the node" in text(client.get(asked.url))


def test_outdated_page_asks_again(client: Any, olga: Any, gpu: Device, sent: Any) -> None:
    client.force_login(olga)
    link = f"/gpus/devices/{gpu.pk}/reset/"
    version = client.get(link).context["hidden"]["version"]
    lift_cordon(actor=SYSTEM, device_id=gpu.pk)
    again = client.post(link, {"version": version}, follow=True)
    assert message_of(Reason(CommonCode.CHANGED_SINCE, {"name": "GPU 0 of node-1"})) in text(again)
    # There is no button.
    assert "is in service, and no check recommends a reset" in text(again)
    assert 'class="btn danger-fill"' not in text(again)
    assert not GpuCheckRun.objects.exists()


def test_simulated_gpu_reset_is_marked(
    catalog: None, tmp_path: Any, client: Any, olga: Any, sent: Any
) -> None:
    pool = simulated_pool(str(tmp_path / "sim"), nodes=1, gpus=1)
    device = Device.objects.get(node__pool=pool)
    cordon_by_check(device)
    client.force_login(olga)
    link = f"/gpus/devices/{device.pk}/reset/"
    assert "nothing; the GPU is simulated" in text(client.get(link))
    page = client.post(link)
    (message,) = sent.take("node.gpu_reset")
    sent.deliver(message)
    (answered,) = sent.take("control.apply_gpu_check")
    sent.deliver(answered)
    assert "Simulated: no GPU was reset." in text(client.get(page.url))
    assert sent.of("node.gpu_check")
