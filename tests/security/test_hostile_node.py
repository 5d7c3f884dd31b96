"""Attacks by machines: without a token, with a foreign one, as another node, revoked, copied."""

from __future__ import annotations

import secrets
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.conf import settings as django_settings
from django.test import Client

from portal.celery import app as control_app
from portal.common.events.models import Event, Notification
from portal.fleet.inventory import node_commands, polling
from portal.fleet.inventory.models import Node
from portal.fleet.machines import certificates, door, services
from portal.fleet.machines import tasks as machine_tasks
from portal.fleet.machines.models import Machine, MachineState
from portal.workspaces import tasks as workspace_tasks
from portal.workspaces.lifecycle import State
from portal.workspaces.tokens import agent_token
from provisioning import messages
from provisioning.host import membership
from provisioning.node import hello as node_hello
from provisioning.signed_celery import SENDER
from provisioning.signing import public_text
from provisioning.types import Failure, NodeHello, Op, Result
from tests import sites
from tests.newcomers import Newcomer, open_doors, token_for
from tests.senders import sent_by
from tests.workspaces.helpers import taken

WORLD = sites.one_machine


@pytest.fixture
def token(local_pool: Any, olga: Any, settings: Any, tmp_path: Path) -> str:
    open_doors(settings, tmp_path / "tls")
    return token_for(local_pool, olga)


@pytest.fixture
def joined(token: str) -> Newcomer:
    newcomer = Newcomer("gpu-a")
    assert newcomer.join(token).status_code == 201
    return newcomer


# --- without a valid token ------------------------------------------------------------------------


@pytest.mark.django_db
def test_requests_bypassing_the_front_door_are_refused(token: str) -> None:
    newcomer = Newcomer()
    body = newcomer.body(token)
    for headers in (
        {},
        {door.DOOR_HEADER: ""},
        {door.DOOR_HEADER: "é"},
        {door.DOOR_HEADER: door.token_of("another secret")},
        {door.NODE_HEADER: "gpu-a", door.SERIAL_HEADER: "1"},
    ):
        for path in ("join", "rotate", "leave", "standing"):
            answer = Client().post(
                f"/nodes/v1/{path}", body, content_type="application/json", headers=headers
            )
            assert answer.status_code == 404
        assert Client().get("/nodes/v1/authority", headers=headers).status_code == 404
    assert not Machine.objects.exists()


@pytest.mark.django_db
def test_forged_token_is_refused_and_guessing_is_limited(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, number, secret, digest = token.split(".")
    for forged in (
        "",
        "berth-join",
        f"{prefix}.{number}.{secrets.token_urlsafe(32)}.{digest}",
        f"{prefix}.{secrets.token_hex(16)}.{secret}.{digest}",
        f"{prefix}.{number}..{digest}",
        f"{token}\n",
        token.upper(),
    ):
        answer = Newcomer().join(forged)
        assert (answer.status_code, answer.json()["code"]) == (403, "join_token_unknown"), forged
    for _ in range(13):
        Newcomer().join("berth-join")
    refused = Newcomer().join(token)
    assert (refused.status_code, refused.json()["code"]) == (429, "join_too_often")
    assert int(refused["Retry-After"]) > 0
    elsewhere = Newcomer(address="10.9.9.9").join(token)
    assert elsewhere.status_code == 201, "who guesses bars nobody else"


@pytest.mark.django_db
def test_intercepted_join_request_cannot_be_replayed(token: str) -> None:
    newcomer = Newcomer("gpu-a")
    body = newcomer.body(token)
    assert newcomer.post("join", body).status_code == 201
    again = newcomer.post("join", body)
    assert (again.status_code, again.json()["code"]) == (409, "join_token_used")
    assert b"password" not in again.content


@pytest.mark.django_db
def test_certificate_names_are_set_by_the_portal(token: str) -> None:
    newcomer = Newcomer("gpu-a")
    greedy = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(
            x509.Name(
                [
                    x509.NameAttribute(NameOID.COMMON_NAME, certificates.FRONT_NAME),
                    x509.NameAttribute(NameOID.COMMON_NAME, "node:gpu-b"),
                ]
            )
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(certificates.PORTAL_NAME), x509.DNSName("*")]),
            critical=False,
        )
    )
    assert newcomer.join(token, csr=newcomer.csr(greedy)).status_code == 201
    found = newcomer.certificate
    assert found.subject.rfc4514_string() == "CN=node:gpu-a"
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gpu-a.node.berth.internal"]


@pytest.mark.django_db
def test_certificate_request_without_the_private_key_is_refused(token: str) -> None:
    newcomer, victim = Newcomer("gpu-a"), Newcomer("gpu-b")
    request = x509.load_pem_x509_csr(victim.csr().encode())
    broken = bytearray(request.public_bytes(serialization.Encoding.DER))
    broken[-1] ^= 1
    text = ssl.DER_cert_to_PEM_cert(bytes(broken)).replace("CERTIFICATE", "CERTIFICATE REQUEST")
    assert newcomer.join(token, csr=text).json()["code"] == "csr_invalid"
    large = ec.generate_private_key(ec.SECP384R1())
    other = Newcomer("gpu-a", key=large)
    assert other.join(token).json()["code"] == "csr_invalid"


@pytest.mark.django_db
def test_reserved_node_names_are_refused(token: str, settings: Any, local_pool: Any) -> None:
    for name in ("node-1", settings.BERTH_NODE_NAME.lower()):
        answer = Newcomer(name).join(token)
        assert answer.json()["code"] in {"node_name_taken", "node_name_invalid"}, name
    folder = settings.BERTH_NODE_KEYS_DIR
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "of-old.pub").write_text("")
    try:
        assert Newcomer("of-old").join(token).json()["code"] == "node_name_taken"
    finally:
        (folder / "of-old.pub").unlink()


@pytest.mark.django_db
def test_weak_or_shared_key_is_refused(joined: Newcomer, local_pool: Any, olga: Any) -> None:
    second = token_for(local_pool, olga)
    for key in (
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        public_text(joined.signing_key),
        public_text(django_settings.BERTH_CONTROL_KEY),
        f"{public_text('11' * 32)} {public_text('22' * 32)}",
    ):
        assert Newcomer("gpu-b").join(second, signing_key=key).json()["code"] == "signing_key_invalid", key


@pytest.mark.django_db
# A fast clock gets closer while the request is sent.
@pytest.mark.parametrize("off_s", [-3600, -61, 90, 3600, 1e10])
def test_wrong_clock_is_reported_at_once(token: str, off_s: float) -> None:
    answer = Newcomer().join(token, clock=time.time() + off_s)
    assert (answer.status_code, answer.json()["code"]) == (409, "clock_off")
    assert abs(answer.json()["reason"]["params"]["seconds"] - abs(off_s)) < 30


# --- as another or a former node ------------------------------------------------------------------


@pytest.mark.django_db
def test_copied_machine_cannot_join_under_another_name(joined: Newcomer, local_pool: Any, olga: Any) -> None:
    copy = Newcomer("gpu-b", machine_id=joined.machine_id)
    answer = copy.join(token_for(local_pool, olga))
    assert (answer.status_code, answer.json()["code"]) == (409, "machine_joined_already")
    assert "gpu-a" in answer.json()["detail"]


def hello(machine: Machine, **changes: Any) -> dict[str, Any]:
    said = NodeHello(machine.machine_id, machine.instance, "boot-1", "0.1.0", time.time())
    return messages.dump(said) | changes


@pytest.mark.django_db
def test_two_machines_with_one_identity_are_detected(joined: Newcomer, olga: Any, clock: Any) -> None:
    machine = Machine.objects.get()
    with sent_by("node.gpu-a"):
        for boot in ("boot-1", "boot-1", "boot-2", "boot-2"):
            clock.shift(15)
            machine_tasks.node_hello.run(hello(machine, boot=boot))
        machine.refresh_from_db()
        assert machine.cloned_at is None, "it was started again"
        for boot in ("boot-1", "boot-2", "boot-1"):
            clock.shift(15)
            machine_tasks.node_hello.run(hello(machine, boot=boot))
    machine.refresh_from_db()
    assert machine.cloned_at is not None
    assert Event.objects.filter(kind="machine.cloned").count() == 1
    assert (
        Notification.objects.get(user=olga, kind="node.cloned").title == "Two machines use the keys of gpu-a"
    )


def test_heartbeat_contains_the_identity_of_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_NODE_INSTANCE", "ab" * 16)
    said = node_hello.hello()
    assert (said.machine_id, said.instance) == (membership.machine_id("ab" * 16), "ab" * 16)


@pytest.mark.django_db
def test_copied_disk_in_another_machine_is_detected(joined: Newcomer) -> None:
    machine = Machine.objects.get()
    with sent_by("node.gpu-a"):
        machine_tasks.node_hello.run(hello(machine, machine_id="f" * 64, version="9.9.9"))
    machine.refresh_from_db()
    assert machine.cloned_at is not None
    assert machine.version != "9.9.9"


@pytest.mark.django_db
def test_heartbeat_counts_for_its_sender_only(joined: Newcomer) -> None:
    machine = Machine.objects.get()
    for sender in ("node.gpu-b", "node.", "control", ""):
        with sent_by(sender):
            machine_tasks.node_hello.run(hello(machine))
    with sent_by("node.gpu-a"):
        for wrong in (
            {},
            {"clock": "soon"},
            hello(machine, clock=float("nan")),
            hello(machine, boot="x" * 500),
        ):
            machine_tasks.node_hello.run(wrong)
    machine.refresh_from_db()
    assert machine.heard_at is None
    with sent_by("node.gpu-a"):
        machine_tasks.node_hello.run(hello(machine, clock=time.time() - 300))
    machine.refresh_from_db()
    assert machine.heard_at is not None and -330 < machine.clock_off_s < -290


@pytest.mark.django_db
def test_result_for_the_workspace_of_another_node_is_ignored(
    joined: Newcomer, make: Any, alice: Any, sent: Any
) -> None:
    workspace = make(alice)
    command = taken(sent, Op.START)
    failure = Failure("start_failed", "It is gone.", retryable=False, blame="user")
    answer = messages.dump(Result(command.op, command.ref, command.lease, failure=failure))
    with sent_by("node.gpu-a"):
        workspace_tasks.apply_result.run(answer)
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING


def called_by(sender: str, task: Any, **kwargs: Any) -> Any:
    """As when a worker process runs a task admitted by the main process."""
    task.push_request(**{SENDER: sender})
    from celery._state import _task_stack

    _task_stack.push(task)
    try:
        return task(**kwargs)
    finally:
        _task_stack.pop()
        task.pop_request()


@pytest.mark.django_db
def test_messages_of_a_revoked_node_are_dropped(
    joined: Newcomer, olga: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine.objects.get()
    task = control_app.tasks["control.node_hello"]
    called_by("node.gpu-a", task, hello=hello(machine))
    machine.refresh_from_db()
    heard_at = machine.heard_at
    assert heard_at is not None
    services.revoke(actor=olga, machine_id=machine.pk)
    called_by("node.gpu-a", control_app.tasks["control.worker_ready"], queues=["node.gpu-a"])
    assert "dropped a message from node.gpu-a" in caplog.text
    assert "node.gpu-a" not in [name for name, keys in control_app.identity.keys().items() if keys]


@pytest.mark.django_db
def test_revoked_node_gets_no_commands(joined: Newcomer, olga: Any, local_pool: Any, sent: Any) -> None:
    assert "gpu-a" in node_commands.nodes_to_ask(local_pool)
    services.revoke(actor=olga, machine_id=Machine.objects.get().pk)
    assert "gpu-a" not in node_commands.nodes_to_ask(local_pool)
    polling.request_inventory(local_pool)
    node = Node.objects.get(name="gpu-a")
    assert (node.online, node.cordoned) == (False, True)
    for path in ("rotate", "leave", "standing"):
        body = {"csr": joined.csr(), "signing_key": "ab" * 32} if path == "rotate" else {}
        refused = joined.as_node(path, body)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_a_joined_node")


@pytest.mark.django_db
def test_agents_on_a_revoked_node_are_refused(
    joined: Newcomer, make: Any, alice: Any, olga: Any, sent: Any
) -> None:
    workspace = make(alice)
    token = agent_token(workspace.pk, workspace.generation)
    headers = {
        "Authorization": f"Bearer {token}",
        door.DOOR_HEADER: door.token_of(django_settings.BERTH_GATEWAY_SECRET),
        door.NODE_HEADER: "gpu-a",
    }

    def report() -> int:
        return Client().post("/agent/v1/heartbeat", b"{}", "application/json", headers=headers).status_code

    assert report() != 401
    services.revoke(actor=olga, machine_id=Machine.objects.get().pk)
    assert report() == 401
    headers[door.NODE_HEADER] = ""
    assert report() == 401


@pytest.mark.django_db
def test_node_request_is_bound_to_its_certificate(joined: Newcomer, local_pool: Any, olga: Any) -> None:
    other = Newcomer("gpu-b")
    assert other.join(token_for(local_pool, olga)).status_code == 201
    for body in ({}, {"workspaces": "stop"}, {"workspaces": "drain"}):
        stolen = other.as_node("leave", body, node="gpu-a")
        assert (stolen.status_code, stolen.json()["code"]) == (403, "identity_replaced")
    assert not Node.objects.get(name="gpu-a").cordoned
    assert other.as_node("standing", {}, node="gpu-a").status_code == 403
    assert set(Machine.objects.values_list("state", flat=True)) == {MachineState.ACTIVE}
