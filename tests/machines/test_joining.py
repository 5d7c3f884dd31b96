"""Joining, key rotation and leaving of machines."""

from __future__ import annotations

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from django.test import Client
from django.utils import timezone

from portal.celery import trusted_keys
from portal.common.errors import NotAllowed, StateConflict, Unavailable
from portal.common.events.models import Event
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory import tasks as inventory_tasks
from portal.fleet.inventory.models import Allocation, Node
from portal.fleet.machines import certificates, door, services, upkeep
from portal.fleet.machines.models import JoinToken, Machine, MachineState
from portal.scheduling import snapshot_cache
from portal.workspaces import reconcile
from portal.workspaces.models import Workspace
from provisioning import signing
from tests.factories import inventory_of, node_info
from tests.newcomers import Newcomer, token_for
from tests.races import at_once
from tests.senders import sent_by
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db


def test_machine_reports_its_location_and_keeps_it_when_rejoining(token, local_pool, olga):
    newcomer = Newcomer()
    refused = newcomer.join(token, rack="r 7")
    assert refused.status_code == 400 and not Machine.objects.exists()
    assert newcomer.join(token, rack="r07", block="b1").status_code == 201
    node = Node.objects.get(pool=local_pool, name="gpu-07")
    assert node.location == ("r07", "b1")
    assert newcomer.as_node("leave", {}).status_code == 204
    assert Newcomer().join(token_for(local_pool, olga), block="b2").status_code == 201
    node.refresh_from_db()
    assert node.location == ("r07", "b2")


def test_machine_joins(joined, local_pool, settings, sent):
    answer = joined.answer
    assert (answer["node"], answer["pool"]) == ("gpu-07", local_pool.slug)
    assert answer["redis"] | {"password": ""} == {
        "host": "berth.example.org", "port": settings.BERTH_NODES_PORT + 1, "user": "node-gpu-07",
        "password": "", "server_name": "portal.berth.internal",
    }  # fmt: skip
    assert len(answer["redis"]["password"]) == 64
    assert answer["portal_url"] == f"https://berth.example.org:{settings.BERTH_NODES_PORT}"
    assert answer["control_key"] == signing.public_text(settings.BERTH_CONTROL_KEY)
    assert answer["front_door_name"] == "front-door.berth.internal"

    authority = x509.load_pem_x509_certificate(answer["authority"].encode())
    joined.certificate.verify_directly_issued_by(authority)
    assert joined.certificate.public_key() == joined.key.public_key()
    (name,) = joined.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "node:gpu-07"
    names = joined.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gpu-07.node.berth.internal"]
    usage = joined.certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}

    machine = Machine.objects.get()
    assert (machine.state, machine.gateway_host, machine.gateway_port) == ("active", "10.1.2.3", 8646)
    assert answer["redis"]["password"] not in str(machine.__dict__)
    node = Node.objects.get(pool=local_pool, name="gpu-07")
    assert (node.online, node.seen_at) == (False, None)
    assert "node.gpu-07" in trusted_keys()
    entry = Event.objects.get(kind="machine.joined")
    assert (entry.actor_label, entry.pool) == ("node gpu-07", local_pool)
    with sent_by("node.gpu-07"):
        inventory_tasks.worker_ready.run(["node.gpu-07", "node.node-1"])
    queues = [message.queue for message in sent.of("node.inventory")]
    assert "node.gpu-07" in queues, "it is asked as soon as its worker is there"


def test_authority_is_shown_for_a_token_comparison(token, settings):
    headers = {door.DOOR_HEADER: door.token_of(settings.BERTH_GATEWAY_SECRET)}
    pem = Client().get("/nodes/v1/authority", headers=headers).content
    assert token.rsplit(".", 1)[1] == certificates.digest_of(x509.load_pem_x509_certificate(pem))


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"name": "GPU 07"}, 400, "node_name_invalid"),
        ({"name": "a.b"}, 400, "node_name_invalid"),
        ({"name": "-a"}, 400, "node_name_invalid"),
        ({"name": "node-1"}, 409, "node_name_taken"),
        ({"version": "99.1.0"}, 409, "version_differs"),
        ({"csr": "-----BEGIN CERTIFICATE REQUEST-----"}, 400, "csr_invalid"),
        ({"signing_key": "00" * 32}, 400, "signing_key_invalid"),
        ({"signing_key": "x"}, 400, "signing_key_invalid"),
        ({"gateway_port": 0}, 400, "invalid"),
        ({"gateway_port": "8646"}, 400, "invalid"),
        ({"clock": None}, 400, "invalid"),
        ({"address": "10.0.0.1/evil"}, 400, "invalid"),
        ({"machine_id": ""}, 400, "invalid"),
        ({"admin": True}, 400, "invalid"),
    ],
)
def test_invalid_join_is_refused_and_keeps_the_token(token, changes, status, code):
    answer = Newcomer().join(token, **changes)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer["Content-Type"] == "application/problem+json"
    assert not Machine.objects.exists()
    assert Newcomer().join(token).status_code == 201


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'"x"', b"{", b'{"token": 1}', b"\xff", b"[" * 5000])
def test_malformed_bodies_are_refused(doors, body):
    assert Newcomer().post("join", body).json()["code"] == "invalid"


def test_body_above_the_limit_is_413(doors):
    assert Newcomer().post("join", b" " * (door.MAX_NODE_BODY + 1)).status_code == 413


def test_token_joins_one_machine(joined, token):
    other = Newcomer("gpu-08")
    answer = other.join(token)
    assert (answer.status_code, answer.json()["code"]) == (409, "join_token_used")
    assert "Create a new token" in answer.json()["detail"]


def test_expired_and_revoked_tokens_are_refused(doors, local_pool, olga, clock):
    made = services.make_join_token(actor=olga, pool=local_pool)
    revoked = services.make_join_token(actor=olga, pool=local_pool)
    services.revoke_join_token(actor=olga, pool=local_pool, token_id=revoked.token.pk)
    assert Newcomer().join(revoked.text).json()["code"] == "join_token_unknown"
    clock.shift(timedelta(hours=1, seconds=1))
    assert Newcomer().join(made.text).json()["code"] == "join_token_expired"
    clock.shift(timedelta(days=2))
    upkeep.run()
    assert not JoinToken.objects.exists()


def test_machine_name_is_unique(joined, local_pool, olga):
    answer = Newcomer().join(token_for(local_pool, olga))
    assert answer.json()["code"] == "node_name_taken"


def test_machine_rotates_its_keys(joined):
    before = joined.answer
    old_key = signing.public_keys(signing.public_text(joined.signing_key))
    old_serial = joined.certificate.serial_number
    answer = joined.rotate()
    assert answer.status_code == 200, answer.content
    assert joined.answer["certificate"] != before["certificate"]
    assert joined.answer["redis"]["password"] != before["redis"]["password"]
    new_key = signing.public_keys(signing.public_text(joined.signing_key))
    raw = {key.public_bytes_raw() for key in trusted_keys()["node.gpu-07"]}
    assert raw == {key.public_bytes_raw() for key in (*old_key, *new_key)}
    assert joined.rotate(serial=old_serial).status_code == 200, "the certificate of before holds a while"
    assert Event.objects.filter(kind="machine.rotated").count() == 2


def test_replaced_certificate_is_valid_for_ten_minutes(joined, clock):
    old_serial = joined.certificate.serial_number
    joined.rotate()
    clock.shift(timedelta(minutes=10, seconds=1))
    assert len(trusted_keys()["node.gpu-07"]) == 1
    upkeep.run()
    machine = Machine.objects.get()
    assert (machine.former_signing_key, machine.former_password_digest) == ("", "")
    refused = joined.as_node("leave", {}, serial=old_serial)
    assert (refused.status_code, refused.json()["code"]) == (403, "identity_replaced")
    machine.refresh_from_db()
    assert machine.cloned_at is not None and machine.state == MachineState.ACTIVE


def test_machine_leaves_and_rejoins(joined, local_pool, olga, sent):
    assert joined.as_node("leave", {}).status_code == 204
    assert Machine.objects.get().state == MachineState.LEFT
    assert trusted_keys()["node.gpu-07"] == ()
    node = Node.objects.get(name="gpu-07")
    assert (node.retired, node.online) == (True, False)
    assert joined.as_node("leave", {}).json()["code"] == "not_a_joined_node"
    again = Newcomer(machine_id=joined.machine_id)
    assert again.join(token_for(local_pool, olga)).status_code == 201
    node.refresh_from_db()
    assert (node.retired, node.cordoned) == (False, False)


def test_node_with_workspaces_cannot_leave(joined, make, alice):
    workspace = make(alice)
    node = Node.objects.get(name="gpu-07")
    Allocation.objects.create(
        workspace=workspace, node=node, generation=1, cpu_milli=1, memory_mib=1, granted_at=timezone.now()
    )
    refused = joined.as_node("leave", {})
    assert (refused.status_code, refused.json()["code"]) == (409, "node_has_workspaces")
    assert "gpu-07 still has 1 workspace" in refused.json()["detail"]
    Allocation.objects.filter(node=node).update(released_at=timezone.now())
    assert joined.as_node("leave", {}).status_code == 204


def placed(make, alice, *names):
    """Workspaces that run on gpu-07."""
    node = Node.objects.get(name="gpu-07")
    Node.objects.exclude(pk=node.pk).update(cordoned=True)
    inventory.apply_inventory(pool=node.pool, inventory=inventory_of(node_info("gpu-07")))
    snapshot_cache.forget()
    return [make(alice, name=name) for name in names]


def test_node_gets_its_workspaces(joined, make, alice, sent):
    assert joined.as_node("standing", {}).json() == {"placed": 0, "workspaces": []}
    placed(make, alice, "paper", "run")
    found = joined.as_node("standing", {}).json()
    assert found == {"placed": 2, "workspaces": ["vision/alice/paper", "vision/alice/run"]}


@pytest.mark.parametrize("how", ["drain", "stop"])
def test_leaving_stops_or_drains_workspaces_first(
    joined, make, alice, sent, how, django_capture_on_commit_callbacks, settings
):
    settings.BERTH_PREEMPTION_GRACE_S = 0
    (workspace,) = placed(make, alice, "paper")
    run_until_ready(sent, workspace)
    with django_capture_on_commit_callbacks(execute=True):
        answer = joined.as_node("leave", {"workspaces": how})
    assert (answer.status_code, answer.json()["workspaces"]) == (202, ["vision/alice/paper"])
    assert Machine.objects.get().state == MachineState.ACTIVE
    assert Node.objects.get(name="gpu-07").cordoned
    Workspace.objects.filter(pk=workspace.pk).update(lease="", next_reconcile_at=timezone.now())
    sent.take("node.execute")
    reconcile.sweep()
    workspace.refresh_from_db()
    assert workspace.state == "stopping"
    assert workspace.desired_state == ("stopped" if how == "stop" else "running")
    reconcile.release(workspace)
    Workspace.objects.filter(pk=workspace.pk).update(state="stopped")
    assert joined.as_node("leave", {"workspaces": how}).status_code == 204
    assert Machine.objects.get().state == MachineState.LEFT


def test_invalid_choice_is_refused(joined):
    for body in ({"workspaces": "kill"}, {"workspaces": 1}, {"grace_s": 0}):
        assert joined.as_node("leave", body).status_code == 400
    assert Machine.objects.get().state == MachineState.ACTIVE


def test_machine_is_revoked_and_removed(joined, olga, local_pool):
    machine = Machine.objects.get()
    with pytest.raises(StateConflict):
        services.remove(actor=olga, machine_id=machine.pk)
    for _ in range(2):
        services.revoke(actor=olga, machine_id=machine.pk, reason="stolen")
    assert trusted_keys()["node.gpu-07"] == ()
    assert joined.rotate().json()["code"] == "not_a_joined_node"
    entry = Event.objects.get(kind="machine.revoked")
    assert (entry.actor, entry.reason) == (olga, "stolen")
    assert (
        Newcomer(machine_id="other" * 8).join(token_for(local_pool, olga)).json()["code"] == "node_name_taken"
    )
    with pytest.raises(Unavailable):
        services.remove(actor=olga, machine_id=machine.pk)  # there is no Redis here


def test_join_token_is_refused_with_a_reason_if_machines_cannot_join(local_pool, olga, settings, doors):
    settings.BERTH_NODES_ADDRESS = ""
    with pytest.raises(StateConflict) as refused:
        services.make_join_token(actor=olga, pool=local_pool)
    assert "BERTH_NODES_ADDRESS" in refused.value.sentence


def test_only_operators_manage_machines(doors, local_pool, alice, joined):
    machine = Machine.objects.get()
    for act in (
        lambda: services.make_join_token(actor=alice, pool=local_pool),
        lambda: services.revoke(actor=alice, machine_id=machine.pk),
        lambda: services.remove(actor=alice, machine_id=machine.pk),
    ):
        with pytest.raises(NotAllowed):
            act()


@pytest.mark.django_db(transaction=True)
def test_two_joins_at_once_with_one_token(doors, local_pool, olga):
    token = token_for(local_pool, olga)
    answers = at_once([lambda name=name: Newcomer(name).join(token) for name in ("gpu-1", "gpu-2", "gpu-3")])
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409]
    assert Machine.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_joins_at_once_with_one_name(doors, local_pool, olga):
    texts = [token_for(local_pool, olga) for _ in range(3)]
    answers = at_once([lambda text=text: Newcomer().join(text) for text in texts])
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409]
    assert {answer.json().get("code") for answer in answers} == {None, "node_name_taken"}
    assert JoinToken.objects.filter(used_at=None).count() == 2


@pytest.mark.django_db(transaction=True)
def test_machine_revoked_during_key_rotation_stays_revoked(doors, local_pool, olga):
    newcomer = Newcomer()
    assert newcomer.join(token_for(local_pool, olga)).status_code == 201
    machine = Machine.objects.get()
    at_once([newcomer.rotate, lambda: services.revoke(actor=olga, machine_id=machine.pk)])
    machine.refresh_from_db()
    assert machine.state == MachineState.REVOKED
    assert trusted_keys()["node.gpu-07"] == ()
