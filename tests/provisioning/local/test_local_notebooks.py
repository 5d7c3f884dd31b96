"""Real JupyterLab and marimo under the local driver, addressed as the gateway addresses them.

They come from BERTH_TEST_NOTEBOOK_ENV, or from the environment that `make up` builds.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest
from local_support import filters_of, socket_of
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from provisioning.types import AppSpec, ObservedState, ResourceRequest
from tests.node_sockets import SocketConnection, get, plug

pytestmark = [pytest.mark.engine, pytest.mark.apart]

DEFAULT = Path(os.environ.get("BERTH_HOME", "var")) / "environments" / "notebook"
ENVIRONMENT = Path(os.environ.get("BERTH_TEST_NOTEBOOK_ENV", DEFAULT)).absolute()
HOST = "ws-0123456789abcdef0123456789abcdef.localhost:8000"
RESOURCES = ResourceRequest(cpu_milli=2000, memory_mib=2048)
JUPYTER = AppSpec(
    argv=(
        "jupyter-lab", "--no-browser", "--ip=127.0.0.1", "--port={port}", "--ServerApp.port_retries=0",
        "--ServerApp.root_dir={home}", "--ServerApp.allow_remote_access=True", "--ServerApp.log_level=WARN",
        "--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ),
    env={"JUPYTER_TOKEN": "{token}"},
    ready_path="/api",
    activity="jupyter",
    stop_timeout_s=10,
)  # fmt: skip
MARIMO = AppSpec(
    argv=(
        "marimo", "--quiet", "--yes", "edit", "--headless", "--skip-update-check", "--no-sandbox",
        "--host=127.0.0.1", "--port={port}", "--token-password-file={token_file}", "{home}",
    ),
    ready_path="/health",
    activity="marimo",
)  # fmt: skip


def started(make_pool, program, app):
    if not (ENVIRONMENT / "bin" / program).exists():
        pytest.skip(f"no {program} in {ENVIRONMENT}; run `make up` or set BERTH_TEST_NOTEBOOK_ENV")
    pool = make_pool(environment=str(ENVIRONMENT))
    spec = pool.spec(app=app, resources=RESOURCES)
    pool.start(spec)
    seen = pool.wait(
        lambda: pool.driver.observe(spec.ref), ObservedState.RUNNING, ObservedState.FAILED, timeout_s=60
    )
    assert seen.state is ObservedState.RUNNING, f"{seen.message}\n{seen.log_tail}"
    return pool, spec, seen


def call(seen, method, path, token="", body=None):
    connection = SocketConnection(socket_of(seen))
    headers = {"Host": HOST, "Origin": f"http://{HOST}"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, json.dumps(body) if body is not None else None, headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data


def websocket(seen, path, token=""):
    """Open a WebSocket like the gateway: public Host and Origin, with the token added."""
    return connect(
        f"ws://{HOST}{path}",
        sock=plug(socket_of(seen)),
        origin=f"http://{HOST}",
        additional_headers={"Authorization": f"Bearer {token}"} if token else {},
        max_size=None,
        open_timeout=20,
    )


def test_jupyterlab_runs_a_cell(make_pool):
    pool, spec, seen = started(make_pool, "jupyter-lab", JUPYTER)
    token = spec.app_token
    assert call(seen, "GET", "/api/kernels")[0] == 403
    assert call(seen, "GET", "/api/contents", token)[0] == 200
    assert call(seen, "GET", "/lab", token)[0] == 200
    status, data = call(seen, "POST", "/api/kernels", token, {"name": "python3"})
    assert status == 201
    kernel = json.loads(data)["id"]
    with pytest.raises(InvalidStatus):
        websocket(seen, f"/api/kernels/{kernel}/channels")
    with websocket(seen, f"/api/kernels/{kernel}/channels", token) as channel:
        header = {
            "msg_id": "1",
            "msg_type": "execute_request",
            "username": "",
            "session": "s",
            "version": "5.3",
        }
        content = {"code": "open('kept.txt', 'w').write('kept'); print(6 * 7)", "silent": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        message |= {"channel": "shell", "buffers": []}
        channel.send(json.dumps(message))
        while True:
            answer = json.loads(channel.recv(timeout=60))
            if answer["msg_type"] == "stream":
                break
    assert answer["content"]["text"] == "42\n"
    assert (pool.home / "homes" / "analysts" / "ada" / "kept.txt").read_text() == "kept"
    assert token not in pool.driver.logs(spec.ref)
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref), ObservedState.STOPPED)
    assert pool.pids(spec.ref) == []


def test_marimo_opens_its_editor_and_its_websocket(make_pool):
    pool, spec, seen = started(make_pool, "marimo", MARIMO)
    token = spec.app_token
    assert get(socket_of(seen), "/health")[0] == 200
    assert call(seen, "GET", "/")[0] in (303, 401)
    assert call(seen, "GET", "/", "wrong")[0] in (303, 401)
    status, page = call(seen, "GET", "/", token)
    assert status == 200 and b"<marimo-" in page
    path = f"/ws?session_id={uuid.uuid4().hex[:12]}&file=__new__"
    with websocket(seen, path, token) as channel:
        assert json.loads(channel.recv(timeout=30))["op"] == "kernel-ready"
        assert set(filters_of(pool, spec).values()) == {"2"}
    for pid in pool.pids(spec.ref):
        assert token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
