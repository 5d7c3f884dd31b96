"""The command line against a portal that listens: uvicorn on the test database."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.factories import make_token
from tests.sweeps import sweep


@pytest.fixture
def server(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The portal's address."""
    from django.core.asgi import get_asgi_application
    from django.db import connection

    from portal.common.events import live

    # Without Redis, streams poll the database, with short pauses here.
    monkeypatch.setattr(live, "POLL_S", 0.05)
    # Server threads must not leave connections open.
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 0)
    # The portal logs to standard error, which is the command's own here.
    logging.disable()
    listener = socket.create_server(("127.0.0.1", 0))
    up = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            up.set()

    web = Server(
        uvicorn.Config(
            get_asgi_application(),
            lifespan="off",
            log_config=None,
            log_level="critical",
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]})
    thread.start()
    assert up.wait(20)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    web.should_exit = True
    thread.join(20)
    logging.disable(logging.NOTSET)
    assert not thread.is_alive()


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def berth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ran]:
    """Run `berth …` with its own home folder."""
    from portal.cli.main import main

    for name in ("BERTH_URL", "BERTH_TOKEN", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as leaving:
            code = int(str(leaving.code))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def as_bob(
    berth: Callable[..., Ran], server: str, bob: Any, team: Any, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """`berth …` signed in as bob, on a portal with a simulated pool."""
    monkeypatch.setenv("BERTH_URL", server)
    monkeypatch.setenv("BERTH_TOKEN", make_token(bob)[1])
    return berth


@pytest.fixture
def workers(as_bob: Any, sent: Any) -> Iterator[None]:
    """Run both planes in the background."""
    from django.db import connection
    from django.utils import timezone

    from portal.workspaces.models import Workspace

    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.wait(0.05):
                Workspace.objects.filter(next_reconcile_at__gt=timezone.now(), lease="").update(
                    next_reconcile_at=timezone.now()
                )
                sent.run()
                sweep()
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
