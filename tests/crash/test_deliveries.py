"""Messages delivered twice or after their expiry."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from portal.common.events.models import Event
from portal.workspaces import services
from provisioning.celery_config import configure, node_queue
from provisioning.signed_celery import Identity, SignedCelery
from provisioning.signing import CONTROL
from tests.broker import Message
from tests.crash.conftest import Planes
from tests.crash.harm import Fleet
from tests.instance import eventually

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("e2e")]


@pytest.mark.django_db
def test_lifecycle_with_every_message_delivered_twice(planes: Planes) -> None:
    kept: list[Message] = []

    def twice(message: Message) -> None:
        kept.append(message)
        planes.sent.deliver(message)
        planes.sent.deliver(message)

    workspace = planes.make()
    planes.until(workspace, "running", twice)
    assert [generation for _, generation in planes.agents(workspace)] == [1]
    services.stop(actor=planes.owner, workspace_id=workspace.pk)
    planes.until(workspace, "stopped", twice)
    assert planes.agents(workspace) == []
    services.start(actor=planes.owner, workspace_id=workspace.pk)
    planes.until(workspace, "running", twice)
    assert [generation for _, generation in planes.agents(workspace)] == [2]
    planes.check()

    # All messages of both runs again, including stops of the first: the second keeps running.
    before = planes.agents(workspace)
    for message in list(kept):
        planes.sent.deliver(message)
    planes.sent.clear()
    assert planes.agents(workspace) == before
    assert planes.state(workspace) == "running"

    services.delete(actor=planes.owner, workspace_id=workspace.pk)
    planes.until(workspace, "terminated", twice)
    planes.check()
    for message in list(kept):
        planes.sent.deliver(message)
    assert planes.agents(workspace) == []
    assert planes.state(workspace) == "terminated"
    planes.check()

    ops = Counter(message.command.op.value for message in kept if message.task == "node.execute")
    assert ops["start"] >= 2 and ops["stop"] >= 1 and ops["delete"] >= 1, ops
    moves = Counter(Event.objects.filter(workspace=workspace).values_list("kind", flat=True))
    assert moves["workspace.place"] == moves["workspace.ready"] == 2
    assert moves["workspace.stopped"] == moves["workspace.gone"] == 1


class Postman:
    """Puts commands into the node's queue, as the control plane does."""

    def __init__(self, fleet: Fleet) -> None:
        berth = fleet.berth
        url = berth.instance.redis_url("control", berth.secret("redis_control"))
        key = berth.secret("control_key")
        self._app = SignedCelery("postman", identity=Identity(CONTROL, lambda: key, dict, tuple))
        configure(self._app, broker_url=url, default_queue="nowhere")
        self._log = berth.instance.logs_dir / "node.log"
        self._queue = node_queue(berth.instance.node_name)

    def deliver(self, command: dict[str, object], *, times: int) -> None:
        """Send the command several times and wait until workers have handled all copies."""
        sent = [
            self._app.send_task("node.execute", kwargs={"command": command}, queue=self._queue).id
            for _ in range(times)
        ]

        def ended() -> bool:
            log = self._log.read_text(errors="replace")
            return all(f"node.execute[{task}] succeeded" in log for task in sent)

        def missing() -> str:
            lines = self._log.read_text(errors="replace").splitlines()[-80:]
            return "\n".join((f"the node has dealt with {sent}; its log:", *lines))

        eventually(ended, limit_s=60, what=missing)

    def close(self) -> None:
        self._app.close()


CAPTURE = """
import json, sys, time, django
django.setup()
from portal.fleet.inventory.node_commands import config_of
from portal.workspaces import dispatch
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.types import Command, Op
workspace = Workspace.objects.get(pk=sys.argv[1])
print(json.dumps(messages.dump(Command(
    op=Op.START, pool=config_of(workspace.pool), ref=dispatch.ref_of(workspace), lease="0" * 32,
    expires_at=time.time() + 600, spec=dispatch.spec_of(workspace),
    placement=dispatch.placement_of(dispatch.allocations_of(workspace)),
))))
"""


@pytest.mark.thorough("half a minute; `make test` delivers every message twice")
@pytest.mark.xdist_group("e2e")
def test_start_command_redelivered_while_running_and_after_deletion_has_no_effect(fleet: Fleet) -> None:
    """On real workers, without lease or expiry: only the driver detects the repetition."""
    workspace_id = fleet.create("captured")
    fleet.recovered()
    command = json.loads(
        fleet.berth.run("-c", CAPTURE, workspace_id, DJANGO_SETTINGS_MODULE="portal.settings")
    )
    assert command["expires_at"] > time.time() and command["placement"]["nodes"]
    before = fleet.agents_of(workspace_id)
    postman = Postman(fleet)
    try:
        postman.deliver(command, times=4)
        assert fleet.agents_of(workspace_id) == before
        fleet.want(workspace_id, "deleted")
        fleet.recovered()
        postman.deliver(command, times=4)
    finally:
        postman.close()
    assert fleet.agents_of(workspace_id) == []
    assert fleet.watch.doubles == set()
    fleet.recovered()
