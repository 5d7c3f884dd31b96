"""An in-process broker: keeps messages of both planes and delivers them on request."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import redis
from django.conf import settings
from kombu.exceptions import OperationalError
from pytest import MonkeyPatch

from portal.celery import app as control_app
from portal.common.events import live
from provisioning import messages
from provisioning.celery_config import node_queue
from provisioning.node.worker import app as node_app
from provisioning.signing import CONTROL
from provisioning.types import Command
from tests.senders import sent_by

control_app.loader.import_default_modules()
node_app.loader.import_default_modules()


@dataclass(frozen=True, slots=True)
class Message:
    """A task message. `due_at` and `expires_at` are UTC seconds since the epoch; signed by `sender`."""

    task: str
    queue: str
    kwargs: dict[str, Any]
    due_at: float
    expires_at: float
    sender: str = CONTROL

    @property
    def command(self) -> Command:
        """The command of a `node.execute`."""
        return messages.load(self.kwargs["command"], Command)


@dataclass
class Broker:
    """Replaces Redis. `away` makes every send fail, as if Redis did not answer."""

    messages: list[Message] = field(default_factory=list)
    away: bool = False
    node: str = ""
    """The node that runs the current task, as a sender."""

    @classmethod
    def in_place_of_redis(cls, monkeypatch: MonkeyPatch) -> Broker:
        """A new broker for both planes; hints find no Redis."""
        broker = cls()
        monkeypatch.setattr(control_app, "send_task", broker.send_task)
        monkeypatch.setattr(node_app, "send_task", broker.send_from_node)
        monkeypatch.setattr(live, "connection", AwayRedis)
        return broker

    def __iter__(self) -> Iterator[Message]:
        return iter(list(self.messages))

    def __len__(self) -> int:
        return len(self.messages)

    def send_task(
        self,
        name: str,
        args: Any = None,
        kwargs: dict[str, Any] | None = None,
        *,
        queue: str = "",
        countdown: float | None = None,
        expires: float | None = None,
        sender: str = CONTROL,
        **_: Any,
    ) -> None:
        """Like Celery's `send_task`, with JSON arguments."""
        assert not args, "tasks are sent with keyword arguments only"
        if self.away:
            raise OperationalError("no broker")
        now = time.time()
        body = json.loads(json.dumps(kwargs or {}))
        due_at, expires_at = now + (countdown or 0), now + (expires or 10**9)
        self.messages.append(Message(name, queue, body, due_at, expires_at, sender))

    def send_from_node(self, name: str, **options: Any) -> None:
        """Like `send_task`, for the node whose task is being delivered."""
        self.send_task(name, sender=self.node or node_queue(settings.BERTH_NODE_NAME), **options)

    @property
    def tasks(self) -> list[str]:
        return [message.task for message in self.messages]

    @property
    def commands(self) -> list[Command]:
        """All pending driver commands."""
        return [message.command for message in self.messages if message.task == "node.execute"]

    def of(self, task: str) -> list[Message]:
        return [message for message in self.messages if message.task == task]

    def clear(self) -> None:
        self.messages.clear()

    def take(self, task: str = "") -> list[Message]:
        """Remove and return pending messages: all, or those of one task."""
        taken = self.of(task) if task else list(self.messages)
        self.messages = [message for message in self.messages if message not in taken]
        return taken

    def deliver(self, message: Message) -> None:
        """Run a message's task in this process, without removing the message."""
        for app in (control_app, node_app):
            task = app.tasks.get(message.task)
            if task is None:
                continue
            self.node = message.queue if message.queue.startswith("node.") else ""
            try:
                with sent_by(message.sender, task):
                    task.run(**json.loads(json.dumps(message.kwargs)))
            finally:
                self.node = ""
            return
        raise AssertionError(f"no plane has a task {message.task}")

    def run(self, *, limit: int = 10_000) -> int:
        """Deliver all due messages, and those sent in turn; return their number."""
        delivered = 0
        while True:
            now = time.time()
            due = [message for message in self.messages if message.due_at <= now]
            if not due:
                return delivered
            for message in due:
                self.messages.remove(message)
                if message.expires_at < now:
                    continue
                self.deliver(message)
                delivered += 1
                assert delivered < limit, "messages go round in circles"


class AwayRedis:
    """A Redis client without a server: every call fails at once."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise redis.ConnectionError("no Redis in this test")

        return fail
