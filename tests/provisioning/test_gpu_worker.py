"""A real node worker: a long check does not block other commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from provisioning import messages
from provisioning.celery_config import ENGINE_QUEUE, KEY_PREFIX, configure, outbox
from provisioning.check_messages import CheckCommand
from provisioning.drivers.simulated import hardware
from provisioning.service.environ import ROOT
from provisioning.signed_celery import Identity, SignedCelery
from provisioning.signing import CONTROL, public_text
from provisioning.types import PoolConfig
from tests.senders import CONTROL_KEY, NODE_KEY
from tests.workspaces.gateway.gateway_support import redis_url as redis_url

pytestmark = [
    pytest.mark.engine,
    pytest.mark.thorough("a worker of its own for GPU checks; `make test` calls its tasks"),
]
CHECK_S = 8.0


class Node:
    """The worker and its messages to the control plane."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], tmp_path: Path) -> None:
        self.process, self._redis = process, Redis.from_url(url)
        self._app = SignedCelery("test", identity=Identity(CONTROL, lambda: CONTROL_KEY, dict, tuple))
        configure(self._app, broker_url=url, default_queue=ENGINE_QUEUE)
        config = {"state": str(tmp_path / "sim"), "nodes": 1, "gpus": 2, "check_s": CHECK_S}
        self.pool = PoolConfig("trial", "simulated", config)
        self.told: list[tuple[str, dict[str, Any]]] = []

    def send(self, task: str, **kwargs: Any) -> None:
        self._app.send_task(task, kwargs=kwargs, queue=ENGINE_QUEUE)

    def check(self, lease: str) -> None:
        command = CheckCommand(
            kind="check", run="r", lease=lease, pool=self.pool, level="quick", deadline_s=60.0,
            uuid=hardware.device_uuid("trial", "sim-001", 0), expires_at=time.time() + 60,
        )  # fmt: skip
        self.send("node.gpu_check", command=messages.dump(command))

    def until(self, task: str, *, limit_s: float = 60) -> dict[str, Any]:
        """Wait for this message of the worker and return it."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            assert self.process.poll() is None, "the worker has ended"
            found = next((kwargs for name, kwargs in self.told if name == task), None)
            if found is not None:
                return found
            raw = self._redis.rpop(KEY_PREFIX + outbox("a"))
            if raw is None:
                time.sleep(0.02)
                continue
            message = json.loads(raw)
            body = json.loads(b64decode(message["body"]))
            self.told.append((message["headers"]["task"], body[1]))
        raise AssertionError(f"it did not tell {task}; it told {[name for name, _ in self.told]}")

    def forget(self) -> None:
        self.told.clear()

    def child(self) -> int:
        """Return the only task process of the worker."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 1, children
        return int(children[0])


@contextmanager
def worker(url: str, tmp_path: Path) -> Iterator[Node]:
    argv = [
        sys.executable, "-m", "celery", "-A", "provisioning.node.worker", "worker", "-Q", ENGINE_QUEUE,
        "-c", "1",
        "-n", "node@test", "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "WARNING",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "BERTH_NODE_NAME": "a",
        "BERTH_NODE_REDIS_URL": url,
        "BERTH_HOME": str(tmp_path),
        "BERTH_NODE_KEY": NODE_KEY,
        "BERTH_CONTROL_PUBLIC_KEY": public_text(CONTROL_KEY),
    }
    with subprocess.Popen(argv, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            yield Node(url, process, tmp_path)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_other_commands_are_served_during_a_check(redis_url: str, tmp_path: Path) -> None:
    with worker(redis_url, tmp_path) as node:
        node.until("control.worker_ready")
        node.check("a" * 32)
        node.until("control.gpu_check_progress")
        node.send("node.inventory", pool=messages.dump(node.pool))
        seen = node.until("control.apply_inventory")
        assert seen["failure"] is None
        assert "control.apply_gpu_check" not in dict(node.told), "the check is still going on"
        answer = node.until("control.apply_gpu_check")["answer"]
        assert answer["report"]["simulated"] is True

        # The task process dies with its check; the worker accepts the command when it is sent again.
        node.forget()
        node.check("b" * 32)
        node.until("control.gpu_check_progress")
        os.kill(node.child(), signal.SIGKILL)
        node.check("c" * 32)
        assert node.until("control.apply_gpu_check")["answer"]["lease"] == "c" * 32
