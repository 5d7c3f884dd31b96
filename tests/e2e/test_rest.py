"""The whole lifecycle over REST with curl, except the kernel's WebSocket."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from tests.e2e.conftest import Answer, Curl
from tests.e2e.kernels import channels, execute
from tests.instance import Berth, eventually

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("e2e")]


def reach(curl: Curl, workspace_id: str, state: str) -> None:
    def look() -> bool:
        answer = curl("GET", f"/api/v1/workspaces/{workspace_id}")
        assert answer.status == 200 and answer.json["state"] != "failed", answer
        return answer.json["state"] == state

    eventually(look, limit_s=60, what=f"the workspace is {state}")


def open_page(curl: Curl, path: str, host: str) -> Answer:
    """The page, once the proxy has its route, shortly after the workspace is ready."""

    def look() -> Answer | None:
        answer = curl("GET", path, host=host)
        assert answer.status in {200, 503}, answer
        return answer if answer.status == 200 else None

    return eventually(look, limit_s=30, what=f"{path} opens")


def test_jupyterlab_from_creation_to_deletion(berth: Berth, curl: Curl) -> None:
    request = {"name": "by-curl", "team": "lab", "template": "jupyterlab", "flavor": "cpu-small"}
    key = {"Idempotency-Key": uuid.uuid4().hex}
    made = curl("POST", "/api/v1/workspaces", request, headers=key)
    assert made.status == 201, made
    workspace_id, host = made.json["id"], berth.host(made.json["id"])
    assert made.json["url"] == f"http://{host}/lab"
    again = curl("POST", "/api/v1/workspaces", request, headers=key)
    assert again.json["id"] == workspace_id

    reach(curl, workspace_id, "running")
    assert "version" in open_page(curl, "/api", host).json
    kernel = curl("POST", "/api/kernels", {"name": "python3"}, host=host)
    assert kernel.status == 201, kernel
    with channels(berth.origin(workspace_id), berth.tokens["ada"], kernel.json["id"]) as channel:
        assert execute(channel, "print(6 * 7)") == "42\n"
        execute(channel, "open('by-cell.txt', 'w').write('from a cell')")
    note = {"type": "file", "format": "text", "content": "kept by curl"}
    saved = curl("PUT", "/api/contents/kept.txt", note, host=host)
    assert saved.status == 201, saved

    assert curl("POST", f"/api/v1/workspaces/{workspace_id}/stop").status in {200, 202}
    reach(curl, workspace_id, "stopped")
    assert curl("GET", "/api", host=host).status == 503
    assert curl("POST", f"/api/v1/workspaces/{workspace_id}/start").status in {200, 202}
    reach(curl, workspace_id, "running")
    open_page(curl, "/api", host)
    assert curl("GET", "/api/contents/kept.txt", host=host).json["content"] == "kept by curl"
    assert curl("GET", "/api/contents/by-cell.txt", host=host).json["content"] == "from a cell"
    logs = curl("GET", f"/api/v1/workspaces/{workspace_id}/logs")
    assert logs.status == 200, logs

    assert curl("DELETE", f"/api/v1/workspaces/{workspace_id}").status in {200, 202, 204}
    reach(curl, workspace_id, "terminated")
    assert curl("GET", "/api", host=host).status == 503
    assert (berth.home / "homes" / "lab" / "ada" / "kept.txt").read_text() == "kept by curl"


def server_token(page: Answer) -> dict[str, str]:
    """The token that marimo's page sends with each request."""
    found = re.search(r'"serverToken": ?"([^"]+)"', page.body)
    assert found, page.body[:2000]
    return {"Marimo-Server-Token": found[1]}


@pytest.mark.thorough("`make test` has JupyterLab; tests of the driver open marimo")
def test_marimo_from_creation_to_deletion(berth: Berth, curl: Curl, tmp_path: Path) -> None:
    made = curl("POST", "/api/v1/workspaces", {"team": "lab", "template": "marimo", "flavor": "cpu-small"})
    assert made.status == 201, made
    workspace_id, host = made.json["id"], berth.host(made.json["id"])
    reach(curl, workspace_id, "running")
    page = open_page(curl, "/", host)
    assert "<marimo-" in page.body

    (tmp_path / "kept.py").write_text("kept = True")
    new = {"path": "/home/ada", "type": "file", "name": "kept.py", "file": f"@{tmp_path / 'kept.py'}"}
    saved = curl("POST", "/api/files/create", host=host, headers=server_token(page), form=new)
    assert saved.status == 200 and saved.json["success"], saved

    curl("POST", f"/api/v1/workspaces/{workspace_id}/stop")
    reach(curl, workspace_id, "stopped")
    curl("POST", f"/api/v1/workspaces/{workspace_id}/start")
    reach(curl, workspace_id, "running")
    page = open_page(curl, "/", host)
    path = {"path": "/home/ada/kept.py"}
    found = curl("POST", "/api/files/file_details", path, host=host, headers=server_token(page))
    assert found.json["contents"] == "kept = True"
    curl("DELETE", f"/api/v1/workspaces/{workspace_id}")
    reach(curl, workspace_id, "terminated")
