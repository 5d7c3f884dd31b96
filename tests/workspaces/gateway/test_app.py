"""Every refusal and page of the gateway app, requested directly, with a real store."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import httpx
import pytest
from gateway_support import DOMAIN, SECRET, WS_A, WS_B, Portal, free_port, settings, view
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from portal.workspaces.gateway import access, file_tickets, tickets, workspace_views
from portal.workspaces.gateway.app import Gateway, GatewaySettings, build_app

pytestmark = pytest.mark.engine
HOST = f"{WS_A}.{DOMAIN}:8000"
PAGE = "http://localhost:8000/workspaces/11111111-2222-3333-4444-555555555555/"
BROWSER = {"accept": "text/html,*/*;q=0.8", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
Http = httpx.AsyncClient


async def ask(
    http: Http,
    *headers: tuple[str, str],
    host: str = HOST,
    method: str = "GET",
    uri: str = "/lab",
    secret: str = SECRET,
) -> httpx.Response:
    """Call forward-auth like the front door."""
    sent = [("x-forwarded-host", host), ("x-forwarded-method", method), ("x-forwarded-uri", uri), *headers]
    plain = [(name, value) for name, value in http.headers.items() if name not in ("accept", "user-agent")]
    http.headers = httpx.Headers(plain)
    return await http.get(f"/gateway/{secret}/auth", headers=httpx.Headers(sent))


async def cookie_for(redis: Redis, redis_async: AsyncRedis, name: str = WS_A, user: str = "7") -> str:
    ticket = tickets.issue(redis, external_name=name, user_id=user)
    cookie = await tickets.exchange(redis_async, ticket=ticket, external_name=name)
    assert cookie
    return cookie


@pytest.fixture
async def cookie(redis: Redis, redis_async: AsyncRedis) -> tuple[str, str]:
    return ("cookie", f"berth_ws={await cookie_for(redis, redis_async)}")


def code(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and code of a refusal, which has a message for an open tab."""
    body = answer.json()
    assert body["message"].endswith((".", "/"))
    return answer.status_code, body["code"]


class TestForwardAuth:
    async def test_session_is_forwarded_with_the_upstream_secret_only(
        self, http: Http, cookie: tuple[str, str], portal: Portal
    ) -> None:
        answer = await ask(http, cookie, ("authorization", "token from-the-app"))
        assert answer.status_code == 200
        assert answer.headers["authorization"] == "token upstream-secret"
        assert "cookie" not in answer.headers
        assert (await ask(http, cookie)).status_code == 200
        assert portal.resolved == [WS_A]  # once, then it is stored

    async def test_app_cookies_are_forwarded_and_session_cookies_removed(
        self, http: Http, cookie: tuple[str, str]
    ) -> None:
        answer = await ask(
            http, ("cookie", "_xsrf=a=b; __Host-berth_ws=x"), cookie, ("cookie", "theme=dark;;")
        )
        assert answer.headers["cookie"] == "_xsrf=a=b; theme=dark"

    async def test_upstream_cookie_is_added_to_app_cookies(
        self, http: Http, cookie: tuple[str, str], redis: Redis
    ) -> None:
        workspace_views.store_view(redis, view(upstream_headers={"Cookie": "session=s"}))
        answer = await ask(http, cookie, ("cookie", "a=1"))
        assert answer.headers["cookie"] == "a=1; session=s"
        assert "authorization" not in answer.headers

    @pytest.mark.parametrize("secret", ["x", SECRET[:-1], SECRET + "x", SECRET.upper(), "é"])
    async def test_forward_auth_without_the_path_secret_is_not_found(
        self, http: Http, cookie: tuple[str, str], secret: str
    ) -> None:
        assert code(await ask(http, cookie, secret=secret)) == (404, "not_found")

    @pytest.mark.parametrize("host", ["localhost:8000", f"{WS_A}.evil.example", "a b", f"{HOST}, {HOST}"])
    async def test_unknown_hosts_are_refused(self, http: Http, cookie: tuple[str, str], host: str) -> None:
        assert code(await ask(http, cookie, host=host)) == (404, "not_found")

    @pytest.mark.parametrize("name", ["x-forwarded-host", "x-forwarded-uri", "x-forwarded-method"])
    async def test_forwarding_header_sent_twice_is_refused(
        self, http: Http, cookie: tuple[str, str], name: str
    ) -> None:
        assert code(await ask(http, cookie, (name, "x"))) == (400, "bad_request")

    async def test_cookie_of_another_workspace_is_refused(
        self, http: Http, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        other = await cookie_for(redis, redis_async, WS_B)
        assert code(await ask(http, ("cookie", f"berth_ws={other}"))) == (401, "not_signed_in")

    async def test_tossed_cookie_is_ignored(
        self, http: Http, cookie: tuple[str, str], redis: Redis, redis_async: AsyncRedis
    ) -> None:
        other = await cookie_for(redis, redis_async, WS_B, "8")
        answer = await ask(http, ("cookie", f"berth_ws={other}; berth_ws=junk; {cookie[1]}"))
        assert answer.status_code == 200

    async def test_two_identities_at_once_are_refused(
        self, http: Http, cookie: tuple[str, str], redis: Redis, redis_async: AsyncRedis
    ) -> None:
        other = await cookie_for(redis, redis_async, WS_A, "8")
        answer = await ask(http, ("cookie", f"berth_ws={other}; {cookie[1]}"))
        assert code(answer) == (401, "not_signed_in")

    async def test_too_many_cookies_are_not_looked_up(self, http: Http, cookie: tuple[str, str]) -> None:
        flood = "; ".join(f"berth_ws={number}" for number in range(50))
        assert code(await ask(http, ("cookie", f"{flood}; {cookie[1]}"))) == (401, "not_signed_in")

    async def test_only_the_prefixed_cookie_is_accepted_over_https(
        self, redis: Redis, redis_async: AsyncRedis, portal: Portal
    ) -> None:
        app = build_app(
            settings("https://localhost"),
            redis_async,
            portal.resolve,
            portal.authorize_bearer,
            portal.record_entry,
        )
        async with Http(transport=httpx.ASGITransport(app=app), base_url="http://web") as http:
            value = await cookie_for(redis, redis_async)
            assert (await ask(http, ("cookie", f"__Host-berth_ws={value}"))).status_code == 200
            assert code(await ask(http, ("cookie", f"berth_ws={value}")))[0] == 401

    async def test_bearer_scheme_is_case_insensitive(self, http: Http) -> None:
        for scheme in ("Bearer", "bearer", "BEARER"):
            answer = await ask(http, ("authorization", f"{scheme} good"))
            assert answer.headers["authorization"] == "token upstream-secret"

    @pytest.mark.parametrize(
        "headers",
        [
            [("authorization", "Bearer bad")],
            [("authorization", "Bearer ")],
            [("authorization", "good")],
            [("authorization", "Basic good")],
            [("authorization", "Bearer good"), ("authorization", "Bearer good")],
            [("authorization", "Bearer " + "x" * 1000)],
            [("x-authorization", "Bearer good")],
        ],
    )
    async def test_invalid_tokens_are_refused(self, http: Http, headers: list[tuple[str, str]]) -> None:
        answer = await ask(http, *headers)
        assert code(answer) == (401, "not_signed_in")
        assert answer.headers["www-authenticate"].startswith("Bearer")

    async def test_token_in_the_query_is_ignored(self, http: Http) -> None:
        assert code(await ask(http, uri="/lab?token=good&access_token=good"))[0] == 401

    async def test_withdrawn_token_is_accepted_for_at_most_one_second(
        self, http: Http, portal: Portal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        assert (await ask(http, ("authorization", "Bearer good"))).status_code == 200
        portal.tokens.clear()
        now += 1.01
        assert (await ask(http, ("authorization", "Bearer good"))).status_code == 401

    async def test_inaccessible_and_unknown_workspaces_answer_alike(self, http: Http) -> None:
        foreign = await ask(http, ("authorization", "Bearer other"))
        unknown = await ask(http, ("authorization", "Bearer other"), host=f"ws-{'0' * 32}.{DOMAIN}")
        assert code(foreign) == code(unknown) == (403, "forbidden")
        assert foreign.content == unknown.content

    async def test_revocation_and_changed_view_apply_at_once(
        self, http: Http, cookie: tuple[str, str], redis: Redis
    ) -> None:
        assert (await ask(http, cookie)).status_code == 200
        workspace_views.store_view(redis, view(user_ids=frozenset({"8"}), revision=1))
        assert code(await ask(http, cookie)) == (403, "forbidden")
        workspace_views.store_view(redis, view(revision=2))
        assert (await ask(http, cookie)).status_code == 200
        tickets.revoke_user(redis, "7")
        assert code(await ask(http, cookie)) == (401, "not_signed_in")

    async def test_a_session_in_use_is_renewed_and_an_idle_one_is_not(
        self, http: Http, cookie: tuple[str, str], redis: Redis
    ) -> None:
        key = tickets.session_key(cookie[1].partition("=")[2])
        redis.expire(key, 600)
        await ask(http, ("authorization", "Bearer good"))
        assert redis.ttl(key) <= 600
        await ask(http, cookie)
        assert redis.ttl(key) > 600


class TestOtherSites:
    @pytest.mark.parametrize(
        "origin", [f"http://{WS_B}.{DOMAIN}:8000", "http://localhost:8000", "null", "", f"https://{HOST}"]
    )
    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "BREW"])
    async def test_other_sites_cannot_send_requests(
        self, http: Http, cookie: tuple[str, str], origin: str, method: str
    ) -> None:
        answer = await ask(http, cookie, ("origin", origin), method=method)
        assert code(answer) == (403, "foreign_origin")

    @pytest.mark.parametrize("extra", [("sec-websocket-key", "x"), ("sec-websocket-version", "13")])
    async def test_other_sites_cannot_open_a_websocket(
        self, http: Http, cookie: tuple[str, str], extra: tuple[str, str]
    ) -> None:
        foreign = ("origin", f"http://{WS_B}.{DOMAIN}:8000")
        assert code(await ask(http, cookie, foreign, extra)) == (403, "foreign_origin")
        assert (await ask(http, cookie, ("origin", f"http://{HOST}"), extra)).status_code == 200
        both = (("origin", f"http://{HOST}"), ("origin", f"http://{HOST}"))
        assert code(await ask(http, cookie, *both, extra)) == (403, "foreign_origin")

    async def test_other_sites_are_refused_even_with_a_token(self, http: Http) -> None:
        answer = await ask(
            http, ("authorization", "Bearer good"), ("origin", "http://evil.example"), method="POST"
        )
        assert code(answer) == (403, "foreign_origin")

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    async def test_other_sites_can_link_but_not_embed_or_load(
        self, http: Http, cookie: tuple[str, str], site: str
    ) -> None:
        for mode, dest in (("no-cors", "script"), ("no-cors", "image"), ("navigate", "iframe"), ("cors", "")):
            fetched = (("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest))
            assert (await ask(http, cookie, *fetched)).status_code == 403, (mode, dest)
        link = (("sec-fetch-site", site), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"))
        assert (await ask(http, cookie, *link)).status_code == 200
        assert (await ask(http, cookie, *link, method="POST")).status_code == 403

    async def test_own_pages_of_the_workspace_are_not_restricted(
        self, http: Http, cookie: tuple[str, str]
    ) -> None:
        for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE"):
            own = (("origin", f"http://{HOST}"), ("sec-fetch-site", "same-origin"))
            assert (await ask(http, cookie, *own, method=method)).status_code == 200


class TestNotSignedIn:
    async def test_browser_is_redirected_to_the_portal_with_a_return_path(self, http: Http) -> None:
        answer = await ask(http, *BROWSER.items(), uri="/lab/tree/a%20b?x=1&y=//z")
        assert answer.status_code == 302
        assert answer.headers["location"] == f"{PAGE}open/?next=/lab/tree/a%2520b%3Fx%3D1%26y%3D//z"
        assert answer.headers["cache-control"] == "no-store"

    @pytest.mark.parametrize("uri", ["//evil.example", "http://evil.example/%0d%0ax", "/\\evil"])
    async def test_return_path_stays_on_this_host(self, http: Http, uri: str) -> None:
        answer = await ask(http, ("accept", "text/html"), uri=uri)
        location = answer.headers["location"]
        assert location.startswith(f"{PAGE}open/?next=/")
        assert "evil.example" not in location
        assert not location.startswith(f"{PAGE}open/?next=//")

    @pytest.mark.parametrize(
        "headers",
        [
            {"accept": "*/*"},
            {"accept": "application/json"},
            {**BROWSER, "sec-fetch-mode": "cors"},
            {**BROWSER, "sec-websocket-key": "x"},
        ],
    )
    async def test_programs_get_a_problem_document_when_signed_out(
        self, http: Http, headers: dict[str, str]
    ) -> None:
        answer = await ask(http, *headers.items())
        assert code(answer) == (401, "not_signed_in")
        assert answer.headers["content-type"] == "application/problem+json"

    async def test_open_tab_explains_how_to_sign_in_and_save(self, http: Http) -> None:
        answer = await ask(http, ("sec-fetch-mode", "cors"), ("sec-fetch-site", "same-origin"), method="PUT")
        address = f"{PAGE}open/?next=/.berth/signed-in"
        assert answer.json()["message"] == (
            "You are signed out. Unsaved changes are still in this tab. "
            f"Sign in again in another tab at {address} and then save here."
        )
        assert answer.json()["link"] == address

    async def test_signed_in_page_tells_to_return_to_the_first_tab(
        self, http: Http, cookie: tuple[str, str]
    ) -> None:
        """It does not open the app, so that no file is edited in two tabs."""
        path = "/.berth/signed-in"
        page = await http.get(path, headers={**BROWSER, "host": HOST, cookie[0]: cookie[1]})
        assert (page.status_code, "Go back to the tab with your work" in page.text) == (200, True)
        without = await http.get(path, headers={**BROWSER, "host": HOST})
        assert without.headers["location"] == f"{PAGE}open/?next=/.berth/signed-in"

    async def test_posted_form_gets_401(self, http: Http) -> None:
        assert code(await ask(http, *BROWSER.items(), method="POST"))[0] == 401


class TestStates:
    @pytest.mark.parametrize(
        ("now", "says", "refreshes"),
        [
            ("pending", "is waiting to start", True),
            ("provisioning", "is starting", True),
            ("stopping", "is stopping", True),
            ("stopped", "is stopped", False),
            ("terminating", "is being deleted", False),
            ("terminated", "has been deleted", False),
            ("failed", "failed", False),
            ("something-new", "is not running", False),
        ],
    )
    async def test_state_page_explains_the_state_and_links_to_the_portal(
        self, http: Http, cookie: tuple[str, str], redis: Redis, now: str, says: str, refreshes: bool
    ) -> None:
        workspace_views.store_view(redis, view(state=now))
        direct = await http.get("/lab", headers={**BROWSER, "host": HOST, cookie[0]: cookie[1]})
        asked = await ask(http, cookie, *BROWSER.items())
        for answer in (asked, direct):
            assert answer.status_code == 503
            assert f"Ada’s &lt;notebook&gt; {says}" in answer.text
            assert f'href="{PAGE}"' in answer.text
            assert ('http-equiv="refresh"' in answer.text) is refreshes
            assert int(answer.headers["retry-after"]) > 0
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert "unsafe" not in policy
            assert "<script" not in answer.text
            assert "style=" not in answer.text
            assert "<style" not in answer.text
        told = await ask(http, cookie)
        assert told.status_code == 503
        assert told.json()["link"] == PAGE
        message = told.json()["message"]
        assert message.startswith(f"Ada’s <notebook> {says}. Unsaved changes are still in this tab. ")
        # A removed workspace does not return.
        assert (f"{PAGE}" in message) is (now not in ("terminating", "terminated"))

    async def test_simulated_workspace_page_is_marked(
        self, http: Http, cookie: tuple[str, str], redis: Redis
    ) -> None:
        workspace_views.store_view(redis, view(simulated=True))
        answer = await http.get("/lab", headers={**BROWSER, "host": HOST, cookie[0]: cookie[1]})
        assert answer.status_code == 200
        assert "This is a simulated workspace: nothing runs in it." in answer.text

    async def test_forward_auth_answers_for_workspaces_without_an_address(
        self, http: Http, cookie: tuple[str, str], redis: Redis
    ) -> None:
        """Its page is sent to the client with any status: an answer without an upstream admits no request."""
        workspace_views.store_view(redis, view(simulated=True))
        answer = await ask(http, cookie)
        assert (answer.status_code, code(answer)[1]) == (200, "workspace_simulated")
        assert not [name for name in answer.headers if name.startswith("x-berth-")]
        workspace_views.store_view(redis, view(endpoint="", revision=1))
        assert code(await ask(http, cookie)) == (503, "workspace_connecting")

    @pytest.mark.parametrize(
        ("place", "said"),
        [
            ({"endpoint": "http://127.0.0.1:5000"}, {"x-berth-http": "127.0.0.1:5000"}),
            ({"endpoint": "https://app.example.org"}, {"x-berth-https": "app.example.org:443"}),
            ({"endpoint": "", "socket": f"{WS_A}.3"}, {"x-berth-socket": f"{WS_A}.3"}),
            (
                {"endpoint": "", "socket": f"{WS_A}.3", "gateway": "10.0.0.5:8646", "node": "gpu-07"},
                {
                    "x-berth-gateway": "10.0.0.5:8646",
                    "x-berth-node": "gpu-07",
                    "x-berth-socket": f"{WS_A}.3",
                },
            ),
        ],
    )
    async def test_forward_auth_returns_the_upstream_address(
        self, http: Http, cookie: tuple[str, str], redis: Redis, place: dict[str, str], said: dict[str, str]
    ) -> None:
        workspace_views.store_view(redis, view(**place))
        answer = await ask(http, cookie)
        assert answer.status_code == 200
        assert {name: value for name, value in answer.headers.items() if name.startswith("x-berth-")} == said

    async def test_direct_request_gets_a_waiting_page_only(self, http: Http, cookie: tuple[str, str]) -> None:
        answer = await http.get("/lab", headers={**BROWSER, "host": HOST, cookie[0]: cookie[1]})
        assert answer.status_code == 503
        assert "is almost ready" in answer.text
        assert 'content="1"' in answer.text

    async def test_page_style_is_served_from_the_same_origin(self, http: Http) -> None:
        answer = await http.get("/.berth/page.css", headers={"host": HOST})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/css")

    async def test_waiting_page_requires_a_session(self, http: Http) -> None:
        answer = await http.get("/lab", headers={**BROWSER, "host": HOST})
        assert answer.status_code == 302
        assert (await http.get("/lab", headers={"host": HOST})).status_code == 401

    async def test_head_has_no_body(self, http: Http) -> None:
        answer = await http.head("/lab", headers={"host": HOST})
        assert (answer.status_code, answer.content) == (401, b"")


class TestBadWeather:
    async def test_missing_store_refuses_access_without_a_traceback(
        self, portal: Portal, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with AsyncRedis.from_url(f"redis://127.0.0.1:{free_port()}", retry=None) as nowhere:
            app = build_app(settings(), nowhere, portal.resolve, portal.authorize_bearer, portal.record_entry)
            async with Http(transport=httpx.ASGITransport(app=app), base_url="http://web") as http:
                for headers in ([("cookie", "berth_ws=x")], [("authorization", "Bearer good")]):
                    assert code(await ask(http, *headers)) == (503, "store_unavailable")
                page = await ask(http, ("cookie", "berth_ws=x"), *BROWSER.items())
                assert page.status_code == 503
                assert "message store is not reachable" in page.text
                answer = await http.get("/.berth/enter?ticket=secret-ticket", headers={"host": HOST})
                assert code(answer) == (503, "store_unavailable")
        assert "secret-ticket" not in caplog.text

    async def test_hanging_store_times_out(self, portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(access, "STORE_TIMEOUT_S", 0.2)
        held: list[asyncio.StreamWriter] = []

        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held.append(writer)
            await reader.read()

        server = await asyncio.start_server(swallow, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with AsyncRedis.from_url(f"redis://127.0.0.1:{port}", retry=None) as hung:
            app = build_app(settings(), hung, portal.resolve, portal.authorize_bearer, portal.record_entry)
            async with Http(transport=httpx.ASGITransport(app=app), base_url="http://web") as http:
                answer = await asyncio.wait_for(ask(http, ("cookie", "berth_ws=x")), 30)
                assert code(answer) == (503, "store_unavailable")
        for writer in held:
            writer.close()
            await writer.wait_closed()
        server.close()
        await server.wait_closed()

    async def test_database_error_is_logged_and_not_shown(
        self, http: Http, cookie: tuple[str, str], portal: Portal, caplog: pytest.LogCaptureFixture
    ) -> None:
        portal.broken = True
        with caplog.at_level(logging.ERROR):
            answer = await ask(http, cookie)
        assert code(answer) == (503, "lookup_failed")
        assert "hunter2" not in answer.text
        assert "gateway request failed" in caplog.text

    async def test_view_of_another_workspace_is_rejected(
        self, http: Http, cookie: tuple[str, str], portal: Portal
    ) -> None:
        portal.views[WS_A] = view(WS_B)
        assert code(await ask(http, cookie)) == (503, "lookup_failed")

    async def test_damaged_entries_are_repaired(
        self, http: Http, cookie: tuple[str, str], redis: Redis, portal: Portal
    ) -> None:
        redis.set(workspace_views.key(WS_A), "{")
        assert (await ask(http, cookie)).status_code == 200
        redis.set(tickets.session_key(cookie[1].partition("=")[2]), "{")
        assert code(await ask(http, cookie))[0] == 401


class TestDispatch:
    @pytest.mark.parametrize(
        ("kind", "path", "host", "ours"),
        [
            ("http", "/lab", HOST, True),
            ("websocket", "/api", HOST, True),
            ("http", "/gateway/x/auth", "127.0.0.1:8001", True),
            ("http", "/", "localhost:8000", False),
            ("http", "/gateways", "localhost:8000", False),
            ("http", "/lab", f"{WS_A}.elsewhere", False),
            ("lifespan", "", "", False),
        ],
    )
    def test_gateway_handles_only_its_own_requests(
        self, gateway: Gateway, kind: str, path: str, host: str, ours: bool
    ) -> None:
        scope: dict[str, Any] = {"type": kind}
        if kind != "lifespan":
            scope |= {"path": path, "headers": [(b"host", host.encode())]}
        assert gateway.handles(scope) is ours

    async def test_unclaimed_websocket_is_closed(self, gateway: Gateway) -> None:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await gateway({"type": "websocket", "path": "/", "headers": []}, receive, send)
        assert [message["type"] for message in sent] == ["websocket.close"]

    @pytest.mark.parametrize("secret", ["", "short", "x" * 20 + "/", "é" * 20])
    def test_a_weak_secret_is_refused(self, secret: str) -> None:
        with pytest.raises(ValueError, match="BERTH_GATEWAY_SECRET"):
            GatewaySettings(secret, DOMAIN, "http://localhost:8000", cookie_secure=False)

    def test_a_public_url_without_scheme_is_refused(self) -> None:
        with pytest.raises(ValueError, match="BERTH_PUBLIC_URL"):
            GatewaySettings(SECRET, DOMAIN, "localhost:8000", cookie_secure=False)


class TestTransfers:
    def issued(self, redis: Redis, **more: str) -> str:
        ticket = file_tickets.new()
        transfer = file_tickets.Transfer(WS_A, f"files-{'c' * 32}.1", **more)
        file_tickets.store_ticket(redis, ticket, transfer, user_id="7", lifetime_s=60)
        return f"{file_tickets.PREFIX}{ticket}"

    async def test_file_ticket_works_once_and_without_a_cookie(self, http: Http, redis: Redis) -> None:
        uri = self.issued(redis)
        answer = await ask(http, uri=uri, method="POST")
        assert answer.status_code == 200
        assert answer.headers["x-berth-socket"] == f"files-{'c' * 32}.1"
        assert "x-berth-gateway" not in answer.headers
        again = await ask(http, uri=uri)
        assert code(again) == (403, "ticket_spent")
        assert "x-berth-socket" not in again.headers

    async def test_preflight_request_does_not_use_up_the_ticket(self, http: Http, redis: Redis) -> None:
        uri = self.issued(redis)
        for _ in range(2):
            asked = await ask(http, uri=uri, method="OPTIONS")
            assert (asked.status_code, asked.headers["x-berth-socket"]) == (200, f"files-{'c' * 32}.1")
        assert (await ask(http, uri=uri, method="PUT")).status_code == 200
        for method in ("PUT", "OPTIONS"):
            assert code(await ask(http, uri=uri, method=method)) == (403, "ticket_spent")
        other = HOST.replace(WS_A, WS_B)
        refused = await ask(http, uri=self.issued(redis), method="OPTIONS", host=other)
        assert code(refused) == (403, "ticket_spent")

    async def test_files_on_another_machine_use_its_gateway(self, http: Http, redis: Redis) -> None:
        answer = await ask(http, uri=self.issued(redis, gateway="10.0.0.2:7443", node="node-2"))
        assert answer.headers["x-berth-gateway"] == "10.0.0.2:7443"
        assert answer.headers["x-berth-node"] == "node-2"

    async def test_file_ticket_is_bound_to_its_workspace_and_user_permission(
        self, http: Http, redis: Redis
    ) -> None:
        other = HOST.replace(WS_A, WS_B)
        assert code(await ask(http, uri=self.issued(redis), host=other)) == (403, "ticket_spent")
        uri = self.issued(redis)
        tickets.revoke_user(redis, "7")
        assert code(await ask(http, uri=uri)) == (403, "ticket_spent")

    async def test_file_ticket_of_another_path_is_refused(
        self, http: Http, redis: Redis, redis_async: AsyncRedis
    ) -> None:
        cookie = await cookie_for(redis, redis_async)
        for uri in (file_tickets.PREFIX, f"{file_tickets.PREFIX}{'x' * 43}", f"{self.issued(redis)}/x"):
            answer = await ask(http, ("cookie", f"berth_ws={cookie}"), uri=uri)
            assert code(answer) == (403, "ticket_spent")
