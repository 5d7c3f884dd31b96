"""Each kind of run has one handler."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.fleet.inventory.models import CheckLevel, Device
from portal.gpu_checks.kinds.proofs import PROOFS, proof_for_cordon, proof_of
from portal.gpu_checks.kinds.registry import handler_of
from portal.gpu_checks.models import CheckCause, CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.gpu_checks.wording import NOUNS
from portal.people.accounts.models import User
from tests.broker import Broker
from tests.factories import node_info
from tests.gpu_checks.helpers import checked_pool, only


@pytest.mark.parametrize("kind", CheckKind)
def test_each_kind_has_its_own_handler(kind: CheckKind) -> None:
    handler = handler_of(kind)
    assert handler.kind == kind
    assert handler is handler_of(kind.value), "one instance serves all runs"


def test_unknown_kind_has_no_handler() -> None:
    with pytest.raises(ValueError, match="polish"):
        handler_of("polish")


@pytest.mark.parametrize("kind", CheckKind)
def test_audit_log_and_refusals_use_the_same_noun(kind: CheckKind) -> None:
    assert handler_of(kind).noun == NOUNS[kind]


@pytest.mark.parametrize("kind", CheckKind)
def test_only_checks_and_scrubs_clear_a_device(kind: CheckKind) -> None:
    if kind in PROOFS:
        assert proof_of(kind) is handler_of(kind)
    else:
        with pytest.raises(ValueError, match="Choose one of: check, scrub"):
            proof_of(kind)


@pytest.mark.parametrize(
    ("cause", "kind"),
    [("check", CheckKind.CHECK), ("scrub", CheckKind.SCRUB), ("operator", None), ("", None)],
)
def test_cordon_is_lifted_by_a_run_of_the_matching_kind(cause: str, kind: CheckKind | None) -> None:
    proof = proof_for_cordon(cause)
    assert (proof.kind if proof else None) == kind


@pytest.fixture
def gpu(catalog: None) -> Device:
    checked_pool(node_info(gpus=1))
    return Device.objects.select_related("node", "node__pool").get()


def run_of_kind(device: Device, kind: CheckKind, **fields: Any) -> GpuCheckRun:
    return GpuCheckRun.objects.create(
        device=device, kind=kind, level=CheckLevel.STANDARD, cause=CheckCause.OPERATOR, **fields
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "label"),
    [
        (CheckKind.CHECK, "Standard check"),
        (CheckKind.SCRUB, "Scrub"),
        (CheckKind.REPARTITION, "Change of MIG layout"),
        (CheckKind.RESET, "Reset"),
        (CheckKind.PAIR, "Link to another node"),
        (CheckKind.JOINT, "All GPUs of a node at once"),
    ],
)
def test_open_run_has_a_label_beside_its_device(
    client: Client, olga: User, gpu: Device, kind: CheckKind, label: str
) -> None:
    run_of_kind(gpu, kind)
    client.force_login(olga)
    page = client.get(reverse("gpu_checks:device-checks", args=[gpu.pk]), headers={"hx-request": "true"})
    assert f"<strong>{label}</strong>" in page.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "label"), [(CheckKind.CHECK, "Check again"), (CheckKind.SCRUB, "Scrub again")]
)
def test_finished_check_or_scrub_can_be_repeated_from_its_page(
    client: Client, olga: User, alice: User, gpu: Device, sent: Broker, kind: CheckKind, label: str
) -> None:
    run = run_of_kind(gpu, kind, state=RunState.DONE, verdict=CheckVerdict.PASS)
    where = reverse("gpu_checks:check", args=[run.pk])
    client.force_login(olga)
    page = client.get(where)
    repeat = page.context["check"].repeat
    assert label in page.content.decode() and repeat.label == label
    asked = client.post(repeat.url, {**dict(repeat.hidden), repeat.name: repeat.value})
    again = GpuCheckRun.objects.exclude(pk=run.pk).get()
    assert asked.url == reverse("gpu_checks:check", args=[again.pk])
    assert again.kind == kind and only(sent).kind == kind
    client.force_login(alice)
    assert label not in client.get(where).content.decode(), "operators alone ask for runs"


@pytest.mark.django_db
@pytest.mark.parametrize("kind", [CheckKind.REPARTITION, CheckKind.RESET, CheckKind.PAIR])
def test_unrepeatable_run_has_no_button(client: Client, olga: User, gpu: Device, kind: CheckKind) -> None:
    run = run_of_kind(gpu, kind, state=RunState.DONE, verdict=CheckVerdict.PASS)
    client.force_login(olga)
    page = client.get(reverse("gpu_checks:check", args=[run.pk]))
    assert page.context["check"].repeat is None
    assert "Check again" not in page.content.decode() and "Scrub again" not in page.content.decode()
