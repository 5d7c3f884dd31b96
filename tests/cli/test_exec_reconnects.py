"""`berth exec` continues after a lost connection, for example a restart of the portal."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from websockets.sync.server import ServerConnection, serve

from portal.cli import execute
from portal.cli.errors import NotSignedIn, Unreachable
from portal.cli.loopback import WebSocketTarget

Script = Callable[[ServerConnection, str], None]


class Jupyter:
    """Replays a script per connection: what a kernel sends until the connection drops."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.sessions: list[str] = []
        self.kernel = {"id": "k", "execution_state": "busy"}
        self.status = 200
        self._server = serve(self._answer, "127.0.0.1", 0)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.http = httpx.Client(base_url="http://ws", transport=httpx.MockTransport(self._rest))

    def websocket(self, path: str) -> WebSocketTarget:
        port = self._server.socket.getsockname()[1]
        return WebSocketTarget(f"ws://127.0.0.1:{port}{path}", "127.0.0.1", port, {})

    def close(self) -> None:
        self.http.close()
        self._server.shutdown()
        self._thread.join(20)

    def __enter__(self) -> Jupyter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _rest(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(201 if request.method == "POST" else self.status, json=self.kernel)

    def _answer(self, channel: ServerConnection) -> None:
        assert channel.request is not None
        session = channel.request.path.partition("session_id=")[2]
        self.sessions.append(session)
        self._scripts.pop(0)(channel, session)


def send(channel: ServerConnection, session: str, kind: str, **content: Any) -> None:
    channel.send(json.dumps({"parent_header": {"msg_id": session}, "msg_type": kind, "content": content}))


def says(text: str) -> Script:
    def script(channel: ServerConnection, session: str) -> None:
        if text == "one ":
            assert json.loads(channel.recv())["header"]["session"] == session
        send(channel, session, "stream", text=text)

    return script


def ends(channel: ServerConnection, session: str) -> None:
    code = {"code": {"data": {"text/plain": "7"}}}
    send(channel, session, "stream", text="two")
    send(channel, session, "execute_reply", user_expressions=code)
    send(channel, session, "status", execution_state="idle")
    channel.recv()


def waits(channel: ServerConnection, _session: str) -> None:
    channel.recv()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    monkeypatch.setattr(execute, "REGAIN_PAUSE_S", 0.0)
    monkeypatch.setattr(execute, "QUIET_S", 0.05)
    opened: list[Jupyter] = []

    def running(jupyter: Jupyter, *answers: Any) -> int:
        opened.append(jupyter)
        states = iter(answers)

        def get(_: str) -> Any:
            answer = next(states)
            if isinstance(answer, Exception):
                raise answer
            return {"state": answer}

        workspaces = SimpleNamespace(get=get, connect=lambda _: jupyter)
        monkeypatch.setattr(
            execute, "find", lambda *_: {"id": "w", "name": "job", "state": "running", "url": ""}
        )
        client: Any = SimpleNamespace(workspaces=workspaces)
        return execute.execute(client, argparse.Namespace(argv=["true"]))

    yield running
    for jupyter in opened:
        jupyter.close()


def test_output_continues_after_reconnecting(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    jupyter = Jupyter(says("one "), ends)
    assert run(jupyter, Unreachable("The portal restarts."), "running") == 7
    assert capsys.readouterr().out == "one two"
    assert len(set(jupyter.sessions)) == 1 and len(jupyter.sessions) == 2


def test_an_expired_token_is_exit_code_3(run: Any) -> None:
    with pytest.raises(NotSignedIn) as error:
        run(Jupyter(says("one ")), NotSignedIn("The token of this CI job has expired."))
    assert error.value.exit_code == 3


@pytest.mark.parametrize(("state", "status"), [("stopped", 200), ("running", 404)])
def test_missing_kernel_is_reported(run: Any, state: str, status: int) -> None:
    jupyter = Jupyter(says("one "))
    jupyter.status = status
    with pytest.raises(Unreachable, match="connection to the command was lost"):
        run(jupyter, state)


def test_missed_exit_code_is_reported(run: Any) -> None:
    jupyter = Jupyter(says("one "), waits)
    jupyter.kernel["execution_state"] = "idle"
    with pytest.raises(Unreachable, match="exit code is unknown"):
        run(jupyter, "running")


def test_failed_first_connection_is_not_retried(run: Any) -> None:
    jupyter = Jupyter()
    jupyter.websocket = lambda _: WebSocketTarget("ws://127.0.0.1:1/", "127.0.0.1", 1, {})  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        run(jupyter)
