"""Requests to a workspace: entering by a ticket, the cookie, and leaving."""

from __future__ import annotations

import httpx
import pytest
from gateway_support import DOMAIN, SECRET, WS_A, WS_B, Portal
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from test_app import BROWSER, HOST, PAGE, Http, ask, code, cookie_for
from test_app import cookie as cookie

from portal.workspaces.gateway import app as gateway_app
from portal.workspaces.gateway import tickets

pytestmark = pytest.mark.engine


class TestEnterAndLeave:
    @pytest.mark.parametrize("how", ["get", "post"])
    async def test_ticket_is_exchanged_for_a_cookie_once(self, http: Http, redis: Redis, how: str) -> None:
        ticket = tickets.issue(redis, external_name=WS_A, user_id="7")
        values = {"ticket": ticket, "next": "/lab?a=b c"}

        async def enter() -> httpx.Response:
            if how == "get":
                return await http.get("/.berth/enter", params=values, headers={"host": HOST, **BROWSER})
            return await http.post("/.berth/enter", data=values, headers={"host": HOST, **BROWSER})

        answer = await enter()
        assert answer.status_code == 303
        assert answer.headers["location"] == "/lab?a=b%20c"
        assert answer.headers["referrer-policy"] == "no-referrer"
        pair, *attributes = answer.headers["set-cookie"].split("; ")
        assert {"Path=/", "HttpOnly", "SameSite=Lax"} <= set(attributes)
        assert (await ask(http, ("cookie", pair))).status_code == 200
        again = await enter()
        assert again.status_code == 403
        assert "set-cookie" not in again.headers
        assert f"{PAGE}open/?next=/lab%3Fa%3Db%2520c" in again.text

    @pytest.mark.parametrize(
        "following", ["//evil.example", "https://evil.example", "/\\evil", "/\r\nx:y", ""]
    )
    async def test_next_never_redirects_to_another_site(
        self, http: Http, redis: Redis, following: str
    ) -> None:
        ticket = tickets.issue(redis, external_name=WS_A, user_id="7")
        answer = await http.get(
            "/.berth/enter", params={"ticket": ticket, "next": following}, headers={"host": HOST}
        )
        assert answer.headers["location"] == "/"

    async def test_ticket_for_another_workspace_or_sent_twice_is_refused(
        self, http: Http, redis: Redis
    ) -> None:
        other = tickets.issue(redis, external_name=WS_B, user_id="7")
        answer = await http.get(f"/.berth/enter?ticket={other}", headers={"host": HOST})
        assert code(answer) == (403, "ticket_spent")
        one = tickets.issue(redis, external_name=WS_A, user_id="7")
        answer = await http.get(f"/.berth/enter?ticket={one}&ticket={one}", headers={"host": HOST})
        assert code(answer) == (403, "ticket_spent")
        assert code(await http.get("/.berth/enter", headers={"host": HOST})) == (403, "ticket_spent")

    async def test_a_huge_form_is_refused(self, http: Http, redis: Redis) -> None:
        ticket = tickets.issue(redis, external_name=WS_A, user_id="7")
        data = {"ticket": ticket, "next": "/" + "x" * 20_000}
        answer = await http.post("/.berth/enter", data=data, headers={"host": HOST})
        assert answer.status_code == 403

    @pytest.mark.parametrize("path", ["/.berth/enter", "/.berth/leave"])
    @pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE"])
    async def test_other_methods_are_refused(self, http: Http, redis: Redis, path: str, method: str) -> None:
        ticket = tickets.issue(redis, external_name=WS_A, user_id="7")
        answer = await http.request(method, f"{path}?ticket={ticket}", headers={"host": HOST})
        assert answer.status_code == 405
        assert redis.exists(tickets.ticket_key(ticket)) == 1

    async def test_leaving_ends_the_session_and_the_cookie(self, http: Http, cookie: tuple[str, str]) -> None:
        answer = await http.post("/.berth/leave", headers={"host": HOST, cookie[0]: cookie[1]})
        assert answer.status_code == 303
        assert answer.headers["location"] == PAGE
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert code(await ask(http, cookie))[0] == 401

    @pytest.mark.parametrize(
        "path", ["/lab%0A", "/.berth/%0A", "/.berth/enter/", "/gateway/%0A", "/a//b", "/%2F/x"]
    )
    async def test_unusual_paths_are_refused_like_others(self, http: Http, path: str) -> None:
        answer = await http.get(path, headers={"host": HOST})
        assert code(answer) in {(401, "not_signed_in"), (404, "not_found")}

    async def test_paths_below_the_internal_prefix_are_no_pages(self, http: Http) -> None:
        for path in (f"/gateway/{SECRET}/x", "/gateway/", "/gateway/x/auth", "/gateway/x/routes"):
            assert code(await http.get(path, headers={"host": HOST, **BROWSER})) == (404, "not_found")

    async def test_a_workspaces_own_pages_read_its_summary(self, http: Http, cookie: tuple[str, str]) -> None:
        answer = await http.get("/.berth/workspace", headers={"host": HOST, cookie[0]: cookie[1]})
        assert answer.status_code == 200
        assert answer.json() == {
            "name": "asked 1",
            "page": PAGE,
            "stop": f"{PAGE}stop/",
        }
        assert answer.headers["cache-control"] == "no-store"

    async def test_summary_is_cached_for_frequent_requests(
        self, http: Http, cookie: tuple[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A busy machine causes pauses.
        monkeypatch.setattr(gateway_app, "_SUMMARY_S", 3600.0)
        headers = {"host": HOST, cookie[0]: cookie[1]}
        answers = [await http.get("/.berth/workspace", headers=headers) for _ in range(20)]
        assert {answer.json()["name"] for answer in answers} == {"asked 1"}

    async def test_summary_requires_a_session_of_the_workspace(
        self, http: Http, cookie: tuple[str, str], redis: Redis, redis_async: AsyncRedis
    ) -> None:
        path = "/.berth/workspace"
        assert code(await http.get(path, headers={"host": HOST})) == (401, "not_signed_in")
        other = {"host": f"{WS_B}.{DOMAIN}:8000", cookie[0]: cookie[1]}
        assert code(await http.get(path, headers=other)) == (401, "not_signed_in")
        stranger = f"berth_ws={await cookie_for(redis, redis_async, user='9')}"
        assert code(await http.get(path, headers={"host": HOST, "cookie": stranger})) == (403, "forbidden")
        foreign = {"host": HOST, cookie[0]: cookie[1], "origin": "http://evil.example"}
        answer = await http.get(path, headers=foreign)
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        posted = await http.post(path, headers={"host": HOST, cookie[0]: cookie[1]})
        assert posted.status_code == 405

    async def test_own_page_extends_the_workspace_of_a_signed_in_user(
        self, http: Http, portal: Portal, cookie: tuple[str, str]
    ) -> None:
        headers = {"host": HOST, cookie[0]: cookie[1]}
        own = {**headers, "origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
        before = (await http.get("/.berth/workspace", headers=headers)).json()
        answer = await http.post("/.berth/extend", headers=own)
        assert (answer.status_code, answer.json()) == (200, {"ends_at": "2030-01-01T00:00:00+00:00"})
        assert portal.extended == [(WS_A, "7")]
        assert (await http.get("/.berth/workspace", headers=headers)).json() != before

    async def test_other_origins_and_users_cannot_extend_the_workspace(
        self, http: Http, portal: Portal, cookie: tuple[str, str], redis: Redis, redis_async: AsyncRedis
    ) -> None:
        own = {"host": HOST, "origin": f"http://{HOST}"}
        mine = {**own, cookie[0]: cookie[1]}
        stranger = f"berth_ws={await cookie_for(redis, redis_async, user='9')}"
        other_host = f"{WS_B}.{DOMAIN}:8000"
        for headers, status in (
            (own, 401),
            ({**own, "authorization": "Bearer good"}, 401),
            ({**own, "cookie": stranger}, 403),
            ({**mine, "origin": f"http://{other_host}"}, 403),
            ({**mine, "origin": "http://evil.example"}, 403),
            ({**mine, "origin": "null"}, 403),
            ({"host": HOST, cookie[0]: cookie[1]}, 403),
            ({"host": HOST, cookie[0]: cookie[1], "sec-fetch-site": "same-site"}, 403),
            ({**mine, "host": other_host, "origin": f"http://{other_host}"}, 401),
        ):
            assert (await http.post("/.berth/extend", headers=headers)).status_code == status, headers
        assert (await http.get("/.berth/extend", headers=mine)).status_code == 405
        assert portal.extended == []

    async def test_unknown_paths_below_the_prefix_are_not_found(self, http: Http) -> None:
        assert code(await http.get("/.berth/x", headers={"host": HOST})) == (404, "not_found")
