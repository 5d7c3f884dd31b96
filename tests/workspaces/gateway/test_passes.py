"""Passes with the real front door: which requests skip forward-auth, which never do, and how passes end."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_support import SECRET, WS_A, WS_B, Stack, echo, eventually, started
from test_stack import enter

from portal.common.passes import key_of
from portal.people.accounts import changes
from portal.workspaces.gateway import app as gateway_app
from portal.workspaces.gateway import bearers, passes, tickets, workspace_views
from portal.workspaces.gateway.request import ClientRequest, forwarded_request
from tests.suite.choice import quick_of

pytestmark = pytest.mark.engine
BEARER = {"Authorization": "Bearer " + "t" * 43}


class Asked:
    """Counts forward-auth requests."""

    def __init__(self) -> None:
        self.count = 0

    def forwarded(self, scope: object) -> ClientRequest:
        self.count += 1
        return forwarded_request(scope)  # type: ignore[arg-type]


class Counted(dict[str, str]):
    """The tokens of the portal, with a lookup count."""

    count = 0

    def get(self, token: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.count += 1
        return super().get(token, default)


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    found = Asked()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway_app, "forwarded_request", found.forwarded)
        yield found


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory, asked: Asked) -> Iterator[Stack]:
    """A front door that accepts passes, and two workspaces at sockets, the second of another user."""
    folder = tmp_path_factory.mktemp("passing")
    with started(folder, passes=folder / "passes") as stack, stack.app(echo), stack.app(echo, name=WS_B):
        yield stack


@pytest.fixture
def door(passing: Stack) -> Stack:
    passing.redis.flushall()
    passing.portal.views = {
        WS_A: at_socket(passing),
        WS_B: at_socket(passing, WS_B, user_ids=frozenset({"8"})),
    }
    passing.portal.tokens = {"t" * 43: "7", "o" * 43: "8"}
    for view in passing.portal.views.values():
        workspace_views.store_view(passing.redis, view)
    return passing


def at_socket(stack: Stack, name: str = WS_A, **changes: object):  # type: ignore[no-untyped-def]
    token = {"Authorization": "Bearer " + "a" * 64}
    return stack.view(name, **{"endpoint": "", "socket": f"{name}.1", "upstream_headers": token, **changes})


def ask(stack: Stack, headers: dict[str, str], name: str = WS_A, path: str = "/x?y=1", method: str = "GET"):  # type: ignore[no-untyped-def]
    url = f"http://127.0.0.1:{stack.proxy_port}{path}"
    return httpx.request(method, url, headers={"Host": stack.host(name), **headers}, timeout=30)


def by_pass(stack: Stack, asked: Asked, headers: dict[str, str], **more: str) -> bool:
    """Return whether the app answers this request without forward-auth."""
    before = asked.count
    answer = ask(stack, headers, **more)
    return asked.count == before and answer.headers.get("x-upstream") == "echo"


def warm(stack: Stack, asked: Asked, headers: dict[str, str], name: str = WS_A, **more: str) -> None:
    """Wait until such requests pass: a gateway that is stalled for seconds admits none."""
    eventually(lambda: by_pass(stack, asked, headers, name=name, **more) or None)


@pytest.fixture
def no_periodic_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes do not expire by time in these tests: only notifications end them."""
    monkeypatch.setattr(passes, "LONGEST_S", 3600.0)
    monkeypatch.setattr(bearers, "CACHED_S", 3600.0)


def cookie_of(stack: Stack, name: str = WS_A, user: str = "7") -> dict[str, str]:
    return {"Cookie": enter(stack, name, user)}


def paths(stack: Stack) -> list[Path]:
    return list((stack.folder / "passes" / key_of(SECRET)).glob("held-*/*/*"))


# --- accepted requests, and what the app gets -----------------------------------------------------


def test_request_with_a_pass_reaches_the_app_unchanged(door: Stack, asked: Asked) -> None:
    own = cookie_of(door)["Cookie"]
    dropped = {"Authorization": "token from-the-page", "X-Berth-Socket": "x", "X-Forwarded-User": "root"}
    cases: list[tuple[dict[str, str], str | None]] = [
        ({"Cookie": own}, None),
        ({"Cookie": f"_xsrf=abc; {own}; theme=dark"}, "_xsrf=abc; theme=dark"),
        ({"Cookie": f"{own}; theme=dark"}, "theme=dark"),
        ({"Cookie": f"_xsrf=abc; {own}"}, "_xsrf=abc"),
        ({"Cookie": f"_xsrf=abc;{own};theme=dark"}, "_xsrf=abc;theme=dark"),
        (BEARER, None),
    ]
    for sent, cookies in cases:
        slow = dict(ask(door, {**dropped, **sent, "Service-Worker": "x"}).json().get("headers", []))
        more = {} if "Authorization" in sent else dropped
        warm(door, asked, {**more, **sent})
        answer = ask(door, {**more, **sent})
        seen = answer.json()
        found = dict(seen["headers"])
        assert len(found) == len(seen["headers"])
        assert (seen["path"], found["host"]) == ("/x?y=1", door.host())
        assert found["authorization"] == "Bearer " + "a" * 64
        assert found.get("cookie") == cookies
        assert not [name for name in found if name.startswith("x-berth-")]
        assert "x-forwarded-user" not in found
        assert found["x-forwarded-for"] == "127.0.0.1"
        assert "via" not in answer.headers
        assert "strict-transport-security" not in answer.headers
        assert slow == {}


@pytest.mark.parametrize(
    ("upstream", "cookies", "authorization"),
    [
        ({"Cookie": "code-server-session=" + "e" * 64}, "code-server-session=" + "e" * 64, None),
        ({}, None, None),
    ],
    ids=["editor", "nothing"],
)
def test_pass_adds_the_credentials_of_the_app(
    door: Stack, asked: Asked, upstream: dict[str, str], cookies: str | None, authorization: str | None
) -> None:
    workspace_views.store_view(door.redis, at_socket(door, upstream_headers=upstream, revision=3))
    own = cookie_of(door)
    for sent in (own, BEARER):
        warm(door, asked, sent)
        found = dict(ask(door, sent).json()["headers"])
        assert (found.get("cookie"), found.get("authorization")) == (cookies, authorization)
    mixed = {"Cookie": f"a=1; {own['Cookie']}; b=2"}
    warm(door, asked, mixed)
    found = dict(ask(door, mixed).json()["headers"])["cookie"]
    assert found == (f"a=1; {cookies}; b=2" if cookies else "a=1; b=2")


def test_requests_without_a_matching_pass_go_to_forward_auth(door: Stack, asked: Asked) -> None:
    for upstream in (
        {"Authorization": "token a-b"},
        {"Authorization": "Bearer a,b"},
        {"Authorization": "Bearer a", "Cookie": "code-server-session=b"},
        {"Cookie": "other=b"},
    ):
        door.redis.flushall()
        workspace_views.store_view(door.redis, at_socket(door, upstream_headers=upstream))
        for _ in range(5):
            assert not by_pass(door, asked, BEARER)
    assert ask(door, BEARER).status_code == 200
    assert paths(door) == []


def test_every_method_passes_with_its_body(door: Stack, asked: Asked) -> None:
    own = {**cookie_of(door), "Origin": door.origin(), "Sec-Fetch-Site": "same-origin"}
    warm(door, asked, own)
    for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD"):
        warm(door, asked, own, method=method)
    assert not by_pass(door, asked, own, method="OPTIONS")


@pytest.mark.parametrize(
    "name", ["X_Forwarded_For", "X-Forwarded_For", "X.Forwarded.For", "X_Berth_Socket", "X-Real-Ip",
             "Forwarded", "X-Berth-Proxy-Secret", "X-Forwarded-Prefix"],
)  # fmt: skip
def test_forged_headers_in_any_spelling_do_not_reach_the_app(door: Stack, asked: Asked, name: str) -> None:
    own = cookie_of(door)
    warm(door, asked, own)
    forged = {**own, name: "203.0.113.9"}
    warm(door, asked, forged)
    answer = ask(door, forged)
    assert answer.status_code == 200
    assert "203.0.113.9" not in answer.text


def test_ended_app_with_a_pass_shows_the_state_page(door: Stack, asked: Asked) -> None:
    """Its socket refuses before the notification of its end arrives."""
    workspace_views.store_view(door.redis, at_socket(door, socket=f"{WS_A}.7", revision=9))
    own = cookie_of(door)
    with door.app(echo, 7):
        warm(door, asked, own)

    def by_its_pass() -> httpx.Response | None:
        before = asked.count
        answer = ask(door, {**own, "Accept": "text/html"})
        return answer if asked.count == before else None

    answer = eventually(by_its_pass)
    assert answer.status_code == 502
    assert "This workspace does not answer" in answer.text
    assert ask(door, own).json()["code"] == "workspace_unavailable"


# --- requests never accepted ----------------------------------------------------------------------

STRANGE: dict[str, list[str]] = {
    "another origin": ["Origin: http://evil.example"],
    "a sibling's origin": [f"Origin: http://{WS_B}.localhost:{{port}}"],
    "no origin": ["Origin: null"],
    "an origin's path": ["Origin: http://{host}/"],
    "https": ["Origin: https://{host}"],
    "two origins": ["Origin: http://{host}", "Origin: http://evil.example"],
    "the same site": ["Sec-Fetch-Site: same-site"],
    "another site": ["Sec-Fetch-Site: cross-site"],
    "two sites": ["Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"],
    "a service worker": ["Service-Worker: script"],
    "an upgrade": ["Connection: Upgrade", "Upgrade: websocket"],
    "a handshake": ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="],
    "a handshake's version": ["sec-websocket-version: 13"],
    "hop by hop": ["Connection: keep-alive, Authorization"],
    "hop by hop too": ["Connection: keep-alive", "Connection: Cookie"],
    "two cookies": ["Cookie: {cookie}; {cookie}"],
    "a tossed cookie": ["Cookie: {cookie}; berth_ws=" + "A" * 43],
    "a tossed cookie first": ["Cookie: berth_ws=" + "A" * 43 + "; {cookie}"],
    "the other name": ["Cookie: {cookie}; __Host-berth_ws=" + "A" * 43],
    "another case": ["Cookie: {cookie}; BERTH_WS=" + "A" * 43],
    "two headers": ["Cookie: {cookie}", "Cookie: a=1"],
    "two headers of ours": ["Cookie: a=1", "Cookie: {cookie}"],
    "in quotes": ['Cookie: berth_ws="{value}"'],
    "a star": ["Cookie: berth_ws=*"],
    "many marks": ["Cookie: berth_ws=" + "?" * 43],
    "a class": ["Cookie: berth_ws=[" + "A" * 41 + "]"],
    "a star at the end": ["Cookie: {cookie}*"],
    "longer": ["Cookie: {cookie}A"],
    "shorter": ["Cookie: {shorter}"],
    "up": ["Cookie: berth_ws=../{name}/{value}"],
    "up, encoded": ["Cookie: berth_ws=%2e%2e%2f{value}"],
    "with a placeholder": ["Cookie: berth_ws={{http.request.host}}"],
    "as a file is called": ["Cookie: berth_ws={value},1,b,{secret}"],
    "another name": ["Cookie: xberth_ws={value}"],
    "another token": ["Authorization: Bearer " + "x" * 43],
    "a token's star": ["Authorization: Bearer *"],
    "two tokens": ["Authorization: {token}", "Authorization: {token}"],
    "a token's own address": ["Authorization: {token}@127.0.0.1"],
    "a token as a cookie": ["Cookie: berth_ws=" + "t" * 43],
    "a cookie as a token": ["Authorization: Bearer {value}"],
    "a token and a cookie of ours": ["Authorization: {token}", "Cookie: berth_ws=" + "A" * 43],
    "nothing": [],
}


def raw(stack: Stack, *lines: str, target: str = "/x", host: str = "") -> bytes:
    """Send a raw request. Returns the response head."""
    asked = "\r\n".join((f"GET {target} HTTP/1.1", f"Host: {host or stack.host()}", *lines))
    with socket.create_connection(("127.0.0.1", stack.proxy_port), timeout=20) as line:
        line.sendall((asked + "\r\n\r\n").encode("latin-1"))
        found = b""
        while b"\r\n\r\n" not in found and (more := line.recv(65536)):
            found += more
    return found.partition(b"\r\n\r\n")[0]


SOME = ("up", "up, encoded", "two tokens", "another token", "a cookie as a token", "longer", "nothing")


@pytest.mark.parametrize(
    "lines",
    quick_of(STRANGE.values(), [STRANGE[name] for name in SOME], "every spelling; `make test` has seven"),
    ids=STRANGE.keys(),
)
def test_irregular_requests_go_to_forward_auth(door: Stack, asked: Asked, lines: list[str]) -> None:
    own = cookie_of(door)
    warm(door, asked, BEARER)
    warm(door, asked, own)
    value = own["Cookie"].partition("=")[2]
    words = {
        "cookie": own["Cookie"], "value": value, "shorter": own["Cookie"][:-1], "port": door.proxy_port,
        "host": door.host(), "name": WS_A, "secret": "a" * 64, "token": BEARER["Authorization"],
    }  # fmt: skip
    sent = [line.format(**words) for line in lines]
    if lines and not any(line.startswith(("Cookie", "Authorization")) for line in lines):
        sent.append(f"Cookie: {own['Cookie']}")
    before = asked.count
    raw(door, *sent)
    assert asked.count == before + 1


def test_cookie_with_control_characters_is_invalid(door: Stack, asked: Asked) -> None:
    own = cookie_of(door)["Cookie"]
    warm(door, asked, {"Cookie": own})
    for strange in (f"{own}\0", f"a=\0; {own}", f"{own}\x01"):
        assert b" 200 " not in raw(door, f"Cookie: {strange}").partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "host",
    ["{upper}.localhost:{port}", "{name}.localhost:{port}.", "%77s-{rest}.localhost:{port}",
     "../{name}.localhost:{port}", "{name}*.localhost:{port}", "*.localhost:{port}",
     "{name}/../{other}.localhost:{port}", "{other}.localhost:{port}", "localhost:{port}"],
)  # fmt: skip
def test_pass_is_not_valid_for_other_hosts(door: Stack, asked: Asked, host: str) -> None:
    own = cookie_of(door)["Cookie"]
    warm(door, asked, {"Cookie": own})
    words = {"upper": WS_A.upper(), "name": WS_A, "rest": WS_A[3:], "other": WS_B, "port": door.proxy_port}
    before = asked.count
    answer = raw(door, f"Cookie: {own}", host=host.format(**words))
    reached = b"x-upstream" in answer.lower()
    assert not reached or asked.count == before + 1


def test_pass_of_another_workspace_is_refused(door: Stack, asked: Asked) -> None:
    """The owner of one uses its cookie or token at the workspace of another user."""
    own = cookie_of(door)
    other = cookie_of(door, WS_B, "8")
    warm(door, asked, own)
    warm(door, asked, other, WS_B)
    warm(door, asked, BEARER)
    assert ask(door, own, WS_B).status_code == 401
    assert ask(door, other).status_code == 401
    assert ask(door, BEARER, WS_B).status_code == 403


def test_gateway_paths_never_reach_the_app(door: Stack, asked: Asked) -> None:
    own = cookie_of(door)
    warm(door, asked, own)
    for path in ("/.berth/nothing", "/%2eberth/nothing", "/x/../.berth/nothing"):
        assert "x-upstream" not in ask(door, own, path=path).headers or path.startswith("/x")


def test_token_pass_is_bound_to_the_client_address(door: Stack, asked: Asked) -> None:
    """Another address is another entry, which must be audited."""
    warm(door, asked, BEARER)
    seen = len(door.portal.entries)
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2")) as elsewhere:
        url = f"http://127.0.0.1:{door.proxy_port}/x"
        assert elsewhere.get(url, headers={"Host": door.host(), **BEARER}).status_code == 200
    assert len(door.portal.entries) == seen + 1


def test_behind_proxies_only_sessions_have_a_pass(tmp_path: Path, asked: Asked) -> None:
    """There the address is not that of the peer."""
    with (
        started(tmp_path, passes=tmp_path / "passes", trusted_proxies=["127.0.0.1"]) as stack,
        stack.app(echo),
    ):
        stack.portal.views = {WS_A: at_socket(stack)}
        stack.portal.tokens = {"t" * 43: "7"}
        warm(stack, asked, cookie_of(stack))
        for _ in range(5):
            assert not by_pass(stack, asked, BEARER)


def test_only_the_prefixed_cookie_has_a_pass_over_https(tmp_path: Path, asked: Asked) -> None:
    """A sibling domain can set the other one."""
    folder = tmp_path / "passes"
    with started(tmp_path, passes=folder, scheme="https", https=True) as stack, stack.app(echo):
        stack.portal.views = {WS_A: at_socket(stack)}
        own = {**cookie_of(stack), "Origin": f"https://{stack.host()}"}
        assert own["Cookie"].startswith("__Host-berth_ws=")
        warm(stack, asked, own)
        answer = ask(stack, own)
        assert "cookie" not in dict(answer.json()["headers"])
        assert answer.headers.get_list("strict-transport-security") == ["max-age=31536000; includeSubDomains"]
        assert not by_pass(stack, asked, {**own, "Origin": stack.origin()})
        value = own["Cookie"].partition("=")[2]
        for cookie in (f"berth_ws={value}", f"{own['Cookie']}; berth_ws={value}"):
            assert not by_pass(stack, asked, {"Cookie": cookie})


# --- end of a pass --------------------------------------------------------------------------------

HARMS = {
    "signed out": lambda door: tickets.revoke_user(door.redis, "7"),
    "sessions ended": lambda door: tickets.revoke_workspace(door.redis, WS_A),
    "stopped": lambda door: workspace_views.store_view(
        door.redis, at_socket(door, state="stopping", revision=9)
    ),
    "given to another": lambda door: workspace_views.store_view(
        door.redis, at_socket(door, user_ids=frozenset({"8"}), revision=9)
    ),
    "emptied": lambda door: door.redis.flushall(),
}


@pytest.mark.parametrize("harm", HARMS)
def test_revoked_access_ends_the_pass(door: Stack, asked: Asked, no_periodic_checks: None, harm: str) -> None:
    own = cookie_of(door)
    for _ in range(3):
        warm(door, asked, own)
    if harm == "emptied":
        door.portal.views = {}
    HARMS[harm](door)
    # The gateway process is notified with the reply to the writer.
    eventually(lambda: "x-upstream" not in ask(door, own).headers or None)
    eventually(lambda: not paths(door) or None)
    for _ in range(20):
        assert "x-upstream" not in ask(door, own).headers


def test_revoked_token_ends_the_pass(door: Stack, asked: Asked, no_periodic_checks: None) -> None:
    warm(door, asked, BEARER)
    del door.portal.tokens["t" * 43]
    door.redis.incr(changes.REVISION_KEY)
    eventually(lambda: ask(door, BEARER).status_code == 401 or None)


def test_app_credentials_are_not_accepted_from_clients(door: Stack, asked: Asked) -> None:
    """Its secret looks like a token, but no pass is searched for it, even if one exists."""
    own = cookie_of(door)

    def planted() -> list[tuple[str, str]] | None:
        found = paths(door)
        if found:
            (found[0].parent / f"{'a' * 64}@127.0.0.1,1,n,").touch()
        before = asked.count
        answer = ask(door, own)
        return answer.json()["headers"] if found and asked.count == before else None

    for _ in range(3):
        assert dict(eventually(planted))["authorization"] == "Bearer " + "a" * 64


def test_token_in_use_is_looked_up_before_its_pass_expires(door: Stack, asked: Asked) -> None:
    """Otherwise its requests would all wait for a lookup each second."""
    looks = door.portal.tokens = Counted(door.portal.tokens)

    def undisturbed() -> bool | None:
        """Return whether the token was looked up twice while all requests passed."""
        before, seen = asked.count, looks.count
        while looks.count < seen + 2:
            assert ask(door, BEARER).status_code == 200
            if asked.count != before:
                return None
        return True

    eventually(undisturbed, timeout_s=60)


def test_token_ended_without_notice_loses_its_pass_while_in_use(door: Stack) -> None:
    """Redis may have been unavailable for the notification."""
    looks = door.portal.tokens = Counted(door.portal.tokens)
    eventually(lambda: (ask(door, BEARER).status_code == 200 and looks.count > 4) or None, timeout_s=60)
    del door.portal.tokens["t" * 43]
    ended = looks.count
    eventually(lambda: ask(door, BEARER).status_code == 401 or None)
    # At most one that had begun, one that detects it, and one that retries.
    assert looks.count <= ended + 3
    eventually(lambda: not paths(door) or None)


def test_signing_out_ends_the_pass_before_its_response(door: Stack, asked: Asked) -> None:
    own = cookie_of(door)
    warm(door, asked, own)
    assert ask(door, own, path="/.berth/leave").status_code == 303
    assert ask(door, own).status_code == 401


def test_forward_auth_sees_every_session_again(
    door: Stack, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.workspaces.gateway.passes.LONGEST_S", 0.5)
    own = cookie_of(door)
    warm(door, asked, own)
    eventually(lambda: not by_pass(door, asked, own) or None)


def test_pass_reaches_only_the_current_start(door: Stack, asked: Asked, no_periodic_checks: None) -> None:
    async def second(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-upstream", b"second")]})  # type: ignore[operator]
        await send({"type": "http.response.body"})  # type: ignore[operator]

    own = cookie_of(door)
    warm(door, asked, own)
    with door.app(second, 2):
        workspace_views.store_view(door.redis, at_socket(door, socket=f"{WS_A}.2", revision=9))
        eventually(lambda: ask(door, own).headers["x-upstream"] == "second" or None)
        for _ in range(20):
            assert ask(door, own).headers["x-upstream"] == "second"


def test_lost_redis_ends_passes(tmp_path: Path, asked: Asked, no_periodic_checks: None) -> None:
    with started(tmp_path, passes=tmp_path / "passes") as stack, stack.app(echo):
        stack.portal.views = {WS_A: at_socket(stack)}
        own = cookie_of(stack)
        warm(stack, asked, own)
        stack.store.kill()
        stack.store.wait(20)
        eventually(lambda: ask(stack, own).status_code == 503 or None)
        assert paths(stack) == []


# --- folder ---------------------------------------------------------------------------------------


def test_forged_passes_are_invalid(door: Stack, asked: Asked) -> None:
    """Another user created the folder or one in it, without knowing the key."""
    folder = door.folder / "passes" / ("0" * 64)
    made = folder / "held" / WS_A
    made.mkdir(parents=True)
    (made / f"{'t' * 43}@127.0.0.1,1,n,").touch()
    for second in range(int(time.time()) - 2, int(time.time()) + 60):
        (folder / str(second)).symlink_to("held")
    door.portal.tokens = {}
    for _ in range(5):
        assert ask(door, BEARER).status_code == 401


@pytest.mark.parametrize("planted", ["readable", "link", "file"])
def test_passes_are_not_written_to_an_unsafe_folder(tmp_path: Path, asked: Asked, planted: str) -> None:
    folder, elsewhere = tmp_path / "passes", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if planted == "readable":
        folder.mkdir(mode=0o755)
    elif planted == "link":
        folder.symlink_to(elsewhere)
    else:
        folder.touch()
    with started(tmp_path, passes=folder) as stack, stack.app(echo):
        stack.portal.views = {WS_A: at_socket(stack)}
        own = cookie_of(stack)
        for _ in range(10):
            assert not by_pass(stack, asked, own)
        assert ask(stack, own).status_code == 200
    assert list(elsewhere.iterdir()) == []


@pytest.mark.thorough("waits for a folder to be missed")
def test_lost_folder_only_disables_passes(door: Stack, asked: Asked) -> None:
    own = cookie_of(door)
    warm(door, asked, own)
    shutil.rmtree(door.folder / "passes")
    eventually(lambda: not by_pass(door, asked, own) or None)
    assert ask(door, own).status_code == 200
    warm(door, asked, own)


def test_number_of_passes_per_workspace_is_limited(
    door: Stack, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front door lists them for each request."""
    monkeypatch.setattr("portal.workspaces.gateway.passes.MAX_PER_WORKSPACE", 3)
    for _ in range(6):
        assert ask(door, cookie_of(door)).status_code == 200
    assert 0 < len(paths(door)) <= 3
