"""Code in a workspace cannot act on the portal, on other workspaces, or on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from provisioning.service.environ import ROOT
from tests.browser import sign_in
from tests.e2e.conftest import Curl
from tests.e2e.kernels import channels, execute
from tests.instance import Api, Berth, eventually, need_notebook_environment
from tests.populate import PASSWORD

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("e2e")]

# Runs as a cell and prints what it can reach, as JSON.
LOOK_AROUND = """
import glob, importlib, json, os, pathlib, socket
found = {}
def attempt(name, act):
    try:
        found[name] = act()
    except BaseException as error:
        found[name] = type(error).__name__
for path in PATHS:
    attempt("read " + path, lambda: pathlib.Path(path).read_bytes()[:40].decode("latin-1"))
    attempt("list " + path, lambda: sorted(os.listdir(path)))
environs, pids = [], []
for path in glob.glob("/proc/[0-9]*/environ"):
    pids.append(int(path.split("/")[2]))
    try:
        environs.append(open(path, "rb").read().decode("latin-1"))
    except OSError:
        pass
found["pids"] = sorted(pids)
found["environs"] = environs
found["environ"] = dict(os.environ)
for name in ("portal", "provisioning", "django", "celery", "portal.settings"):
    attempt("import " + name, lambda: str(importlib.import_module(name)))
attempt("write to the system", lambda: pathlib.Path("/usr/bin/planted").write_text("x"))
attempt("write to its environment", lambda: pathlib.Path(os.__file__).with_name("planted.py").write_text("x"))
attempt("kill a host process", lambda: os.kill(HOST_PID, 0))
attempt("home", lambda: sorted(os.listdir("/home")))
def talk(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plug:
        plug.sendall(data)
        return plug.recv(200).decode("latin-1")
attempt("redis", lambda: talk(REDIS_PORT, b"PING\\r\\n"))
attempt("the portal past the proxy", lambda: talk(WEB_PORT, b"GET /api/v1/workspaces HTTP/1.0\\r\\n\\r\\n"))
print(json.dumps(found))
"""


def test_cell_sees_only_its_own_workspace(berth: Berth, ada: Api) -> None:
    """Must run first: it needs capacity for two JupyterLabs at once."""
    pool = ada.json("GET", "pools/this-machine")
    nodes = ada.json("GET", "nodes")["results"]
    if nodes[0]["isolation"] != "sandbox":
        pytest.skip(f"workspaces are not kept apart here: {nodes[0].get('warnings') or pool}")
    ben = berth.api("ben")
    others = ben.create("jupyterlab", "cpu-small", name="others")["id"]
    mine = ada.create("jupyterlab", "cpu-small")["id"]
    try:
        ben.wait(others, "running")
        ada.wait(mine, "running")
        open_when_routed(berth, mine, ada.token, "/api")
        found = look_around(berth, mine)
    finally:
        ben.act(others, "delete")
        ben.wait(others, "terminated")
        ben.close()

    absent = {"FileNotFoundError", "NotADirectoryError", "PermissionError", "IsADirectoryError"}
    for path in hidden_paths(berth):
        assert found[f"read {path}"] in absent - {"IsADirectoryError"}, (path, found[f"read {path}"])
        assert found[f"list {path}"] in absent, (path, found[f"list {path}"])
    assert found["home"] == ["ada"]
    for path in (ROOT, Path("/root")):
        # At most the path to the environment's programs.
        assert set(visible(found, str(path))) <= ways_to_programs(path), found[f"list {path}"]

    secrets = [path.read_text().strip() for path in (berth.home / "secrets").iterdir()]
    secrets += [*berth.tokens.values(), PASSWORD]
    seen = json.dumps([found["environs"], found["environ"]])
    assert not [secret for secret in secrets if secret in seen]
    assert found["environs"], "its own processes it may see"
    # A separate PID namespace: only its own processes, with small PIDs.
    inside = berth.owned("ws-" + mine.replace("-", ""))
    assert len(found["pids"]) <= len(inside) + 2 and max(found["pids"]) < 1000, found["pids"]
    assert found["kill a host process"] == "ProcessLookupError"

    own = {"BERTH_INSTANCE", "BERTH_WORKSPACE", "BERTH_GENERATION", "BERTH_PACKAGES", "BERTH_PROGRESS_DIR"}
    berths = {
        name for name in found["environ"] if name.startswith(("BERTH_", "DJANGO_", "DATABASE_", "CELERY"))
    }
    assert berths <= own, berths
    for name in ("portal", "provisioning", "django", "celery", "portal.settings"):
        assert found[f"import {name}"] == "ModuleNotFoundError", found[f"import {name}"]
    for name in ("write to the system", "write to its environment"):
        assert found[name] in {"OSError", "PermissionError"}, found[name]
    if any("share this machine's network" in warning for warning in nodes[0]["warnings"]):
        # The listener requires authentication.
        assert found["redis"].startswith("-NOAUTH"), found["redis"]
        assert " 401 " in found["the portal past the proxy"].split("\r\n")[0]
    else:
        assert found["redis"] == found["the portal past the proxy"] == "ConnectionRefusedError"


def visible(found: dict[str, Any], path: str) -> list[str]:
    """The entries of a folder; none if it does not exist."""
    seen = found[f"list {path}"]
    return seen if isinstance(seen, list) else []


def ways_to_programs(folder: Path) -> set[str]:
    """The entries of `folder` that lead to the notebook environment and its Python."""
    environment = need_notebook_environment()
    ways = {environment, environment.resolve(), (environment / "bin" / "python3").resolve()}
    # Its chain of symlinks.
    link = environment / "bin" / "python3"
    while link.is_symlink():
        link = Path(os.path.normpath(link.parent / link.readlink()))
        ways.add(link)
    return {way.relative_to(folder).parts[0] for way in ways if way.is_relative_to(folder)}


def hidden_paths(berth: Berth) -> list[str]:
    home = berth.home
    return [
        str(home),
        str(home / "database" / "berth.sqlite3"),
        str(home / "secrets" / "secret_key"),
        str(home / "run" / "redis.acl"),
        str(home / "logs" / "web.log"),
        str(home / "local"),
        str(home / "homes" / "lab" / "ben"),
        "/home/ben",
        "/etc/shadow",
        str(ROOT / "manage.py"),
        str(ROOT / "portal" / "settings" / "__init__.py"),
    ]


def look_around(berth: Berth, workspace_id: str) -> dict[str, Any]:
    """What a cell of the workspace can see."""
    curl = Curl(berth, berth.tokens["ada"])
    kernel = curl("POST", "/api/kernels", {"name": "python3"}, host=berth.host(workspace_id))
    assert kernel.status == 201, kernel
    values = {
        "PATHS": [*hidden_paths(berth), str(ROOT), "/root"],
        "HOST_PID": berth.services()["web"]["pid"],
        "REDIS_PORT": berth.instance.redis_port,
        "WEB_PORT": berth.instance.web_port,
    }
    code = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + LOOK_AROUND
    with channels(berth.origin(workspace_id), berth.tokens["ada"], kernel.json["id"]) as channel:
        return json.loads(execute(channel, code))


# Runs in a page on the workspace's origin; each entry is the result of one attempt.
ATTEMPTS = """
async ([portal, workspaceId, other]) => {
  const found = {};
  const attempt = async (name, act) => {
    try { found[name] = await act(); } catch (error) { found[name] = "refused: " + error.name; }
  };
  const read = (url, options) => async () => {
    const answer = await fetch(url, { credentials: "include", ...options });
    return answer.type + " " + answer.status + " " + (await answer.text()).slice(0, 200);
  };
  await attempt("read the home page", read(portal + "/"));
  await attempt("read the API", read(portal + "/api/v1/workspaces"));
  await attempt("read tokens", read(portal + "/api/v1/tokens"));
  await attempt("read events", read(portal + "/events/"));
  await attempt("make a token", read(portal + "/api/v1/tokens", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: '{"name": "stolen"}' }));
  // What a form may send without being asked. The answer is hidden, so the portal is looked at afterwards.
  const form = (path, body) => async () => {
    const answer = await fetch(portal + path, { method: "POST", mode: "no-cors", credentials: "include",
      headers: { "Content-Type": "application/x-www-form-urlencoded" }, body: body || "" });
    return answer.type + " " + answer.status;
  };
  await attempt("stop by form", form("/workspaces/" + workspaceId + "/stop/"));
  await attempt("delete by form", form("/workspaces/" + workspaceId + "/delete/"));
  const wish = "template=files&flavor=tiny&team=lab&name=stolen";
  await attempt("create by form", form("/workspaces/new/", wish));
  await attempt("delete by API", read(portal + "/api/v1/workspaces/" + workspaceId, { method: "DELETE" }));
  await attempt("stop by API", form("/api/v1/workspaces/" + workspaceId + "/stop"));
  await attempt("read another workspace", read(other + "/secret.txt"));
  await attempt("load another workspace", async () => {
    const answer = await fetch(other + "/secret.txt", { mode: "no-cors", credentials: "include" });
    return answer.type;
  });
  const frame = (url) => () => new Promise((resolve) => {
    const inner = document.createElement("iframe");
    inner.src = url;
    inner.onload = () => {
      resolve("loaded");
    };
    document.body.append(inner);
  });
  await attempt("frame the portal", frame(portal + "/"));
  await attempt("frame another workspace", frame(other + "/"));
  await attempt("event source", () => new Promise((resolve) => {
    const source = new EventSource(portal + "/events/", { withCredentials: true });
    source.onopen = () => resolve("opened");
    source.onerror = () => { source.close(); resolve("refused"); };
  }));
  await attempt("socket to another workspace", () => new Promise((resolve) => {
    const socket = new WebSocket(other.replace("http", "ws") + "/");
    socket.onopen = () => resolve("opened");
    socket.onerror = () => resolve("refused");
  }));
  await attempt("open the portal and read it", async () => {
    const opened = window.open(portal + "/");
    if (!opened) return "refused";
    for (let look = 0; look < 100; look++) {
      await new Promise((resolve) => setTimeout(resolve, 200));
      try {
        // Until the portal answers, the window shows an empty page of our own.
        if (opened.location.href !== "about:blank") return "read: " + opened.document.body.innerText;
      } catch (error) { return error.name; }
    }
    return "it never came";
  });
  found.cookies = document.cookie;
  for (const name of ["berth", "berth-csrf", "berth_ws"]) {
    document.cookie = name + "=planted; Domain=localhost; Path=/";
    document.cookie = name + "=planted; Domain=.localhost; Path=/";
  }
  return found;
}
"""


def open_when_routed(berth: Berth, workspace_id: str, token: str, path: str) -> None:
    """Open once the proxy has its route, shortly after the workspace is ready."""
    eventually(lambda: berth.enter(workspace_id, token, path) == 200, limit_s=30, what="it opens")


@pytest.fixture(scope="module")
def pair(berth: Berth) -> Iterator[tuple[str, str]]:
    """Ada's and Ben's workspaces, serving their homes; each contains a page and a secret."""
    made = []
    for name in ("ada", "ben"):
        api = berth.api(name)
        made.append((api, api.create("files", "tiny", name="pages")["id"]))
    for api, workspace_id in made:
        api.wait(workspace_id, "running")
    for name in ("ada", "ben"):
        home = berth.home / "homes" / "lab" / name
        (home / "page.html").write_text("<!doctype html><title>page</title><body>a page of mine</body>")
        (home / "secret.txt").write_text(f"secret of {name}")
    ids = (made[0][1], made[1][1])
    for api, workspace_id in made:
        open_when_routed(berth, workspace_id, api.token, "/")
    yield ids
    for api, workspace_id in made:
        api.act(workspace_id, "delete")
        api.wait(workspace_id, "terminated")
        api.close()


@pytest.fixture
def signed_in(browser: Browser, berth: Berth) -> Iterator[Callable[[str], Page]]:
    """`signed_in("ada")`: a page of a new profile, signed in to the portal."""
    contexts = []

    def come(name: str) -> Page:
        context = browser.new_context(base_url=berth.url)
        contexts.append(context)
        page = context.new_page()
        sign_in(page, berth.url, name)
        return page

    yield come
    for context in contexts:
        context.close()


def tokens_of(berth: Berth) -> int:
    return int(berth.rows("SELECT count(*) AS number FROM accounts_apitoken")[0]["number"])


@pytest.mark.browser
@pytest.mark.thorough("a whole Berth with a browser; `make test` has the front door and the gateway")
def test_page_of_a_workspace_cannot_act_on_the_portal(
    berth: Berth, pair: tuple[str, str], signed_in: Callable[[str], Page]
) -> None:
    mine, bens = pair
    page = signed_in("ada")
    home = page.content()
    page.goto(f"/workspaces/{mine}/open/?next=/page.html")
    assert page.url == f"{berth.origin(mine)}/page.html" and "a page of mine" in page.content()
    before, tokens = workspaces(berth), tokens_of(berth)

    found: dict[str, Any] = page.evaluate(ATTEMPTS, [berth.url, mine, berth.origin(bens)])

    refused = {
        "read the home page", "read the API", "read tokens", "read events", "make a token", "delete by API",
        "read another workspace",
    }  # fmt: skip
    for name in refused:
        assert found[name] == "refused: TypeError", (name, found)
    assert found["open the portal and read it"] in {"SecurityError", "refused"}, found
    # Both frames exist, and neither shows its target.
    shown = [frame.url for frame in page.frames if frame != page.main_frame]
    assert shown == ["chrome-error://chromewebdata/"] * 2, shown
    assert found["event source"] == found["socket to another workspace"] == "refused", found
    # Scripts see neither the portal's cookies nor the workspace's.
    assert found["cookies"] == "", found
    # The forms were sent without effect.
    assert workspaces(berth) == before
    assert tokens_of(berth) == tokens

    kept = {cookie["name"]: cookie for cookie in page.context.cookies(berth.url)}
    assert "planted" not in {cookie["value"] for cookie in kept.values()}
    page.goto(berth.url)
    assert page.title() == "Workspaces · Berth" and "Sign out" in home
    page.goto(f"/workspaces/{mine}/open/?next=/page.html")
    assert "a page of mine" in page.content()


def workspaces(berth: Berth) -> list[tuple[Any, ...]]:
    query = "SELECT id, state, desired_state, generation FROM workspaces_workspace ORDER BY id"
    return [tuple(row) for row in berth.rows(query)]


@pytest.mark.browser
@pytest.mark.thorough("a whole Berth with a browser; `make test` has the front door and the gateway")
def test_request_with_portal_cookies_from_a_workspace_origin_is_refused(
    berth: Berth, pair: tuple[str, str], signed_in: Callable[[str], Page]
) -> None:
    """With a custom domain, workspaces are the same site, so browsers send the portal's cookies."""
    mine, _ = pair
    page = signed_in("ada")
    cookies = {cookie["name"]: cookie["value"] for cookie in page.context.cookies(berth.url)}
    token = page.locator("input[name=csrfmiddlewaretoken]").first.input_value()
    line = "; ".join(f"{name}={value}" for name, value in cookies.items())
    curl = Curl(berth)
    before = workspaces(berth)
    for path in (
        f"/workspaces/{mine}/stop/",
        f"/workspaces/{mine}/delete/",
        f"/api/v1/workspaces/{mine}/stop",
    ):
        for extra in ({}, {"X-CSRFToken": token}):
            headers = {"Cookie": line, "Origin": berth.origin(mine), **extra}
            answer = curl("POST", path, host=f"localhost:{berth.port}", headers=headers)
            assert answer.status == 403, (path, answer)
    assert workspaces(berth) == before
    # From the portal's page it is accepted, so the origin was the cause.
    headers = {"Cookie": line, "Origin": berth.url, "X-CSRFToken": token}
    answer = curl("POST", f"/api/v1/workspaces/{mine}/start", host=f"localhost:{berth.port}", headers=headers)
    assert answer.status in {200, 202}, answer


@pytest.mark.browser
@pytest.mark.thorough("a whole Berth with a browser; `make test` has the front door and the gateway")
def test_other_users_and_another_workspace_are_refused(
    berth: Berth, pair: tuple[str, str], signed_in: Callable[[str], Page]
) -> None:
    mine, bens = pair
    ben = signed_in("ben")
    refused = ben.goto(f"/workspaces/{mine}/open/")
    assert refused is not None and refused.status == 404
    ben.goto(f"/workspaces/{bens}/open/?next=/page.html")
    session = next(
        cookie["value"] for cookie in ben.context.cookies(berth.origin(bens)) if cookie["name"] == "berth_ws"
    )
    # His own session, at the other workspace.
    cookie = {"name": "berth_ws", "value": session, "url": berth.origin(mine)}
    ben.context.add_cookies([cookie])
    answer = ben.context.request.get(
        f"http://127.0.0.1:{berth.port}/secret.txt",
        headers={"Host": berth.host(mine), "Cookie": f"berth_ws={session}"},
        max_redirects=0,
    )
    assert answer.status in {302, 401, 403} and "secret of" not in answer.text()
    assert berth.enter(mine, berth.tokens["ben"], "/secret.txt") == 403


def test_access_without_permission_is_refused(berth: Berth, pair: tuple[str, str]) -> None:
    mine, _ = pair
    ada = berth.api("ada")

    def status(token: str) -> int:
        answer = Curl(berth, token)("GET", "/secret.txt", host=berth.host(mine))
        assert answer.status == 200 or "secret of" not in answer.body
        return answer.status

    assert status("") == 401
    assert status("berth_" + "x" * 43) == 401
    made = ada.json("POST", "tokens", {"name": "connects", "scopes": ["workspaces:connect"]})
    assert status(made["secret"]) == 200
    assert ada.ask("POST", f"tokens/{made['id']}/revoke").status_code == 204
    # A positive answer is cached for a second.
    eventually(lambda: status(made["secret"]) == 401, limit_s=5, what="the revoked token is refused")
    for scopes in (["workspaces:read", "workspaces:write"], ["tokens:read"]):
        narrow = ada.json("POST", "tokens", {"name": "narrow", "scopes": scopes})
        assert status(narrow["secret"]) in {401, 403}
    short = ada.json("POST", "tokens", {"name": "short", "scopes": ["workspaces:connect"]})
    assert status(short["secret"]) == 200
    berth.run("-c", EXPIRE, short["id"], DJANGO_SETTINGS_MODULE="portal.settings")
    eventually(lambda: status(short["secret"]) == 401, limit_s=5, what="the expired token is refused")
    ada.close()


EXPIRE = """
import sys, django
django.setup()
from django.utils import timezone
from portal.people.accounts.models import ApiToken
assert ApiToken.objects.filter(pk=sys.argv[1]).update(expires_at=timezone.now()) == 1
"""
