from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from portal.common import front_door
from portal.embedded import configs, proxy
from portal.embedded.environment import Instance
from provisioning.node_gateway import Certificates

CERTIFICATES = Certificates(
    Path("/run/authority.pem"), Path("/run/front-door.pem"), Path("/run/front-door.key")
)


@pytest.fixture
def fixed() -> Instance:
    return Instance.from_environ(
        {"BERTH_HOME": "/srv/my berth", "BERTH_PORT": "8000", "BERTH_NODE_NAME": "node-a"}
    )


def test_redis_listens_on_loopback_with_named_users_only(fixed: Instance) -> None:
    assert configs.redis_conf(fixed) == (
        "bind 127.0.0.1\n"
        "port 8002\n"
        "protected-mode yes\n"
        "daemonize no\n"
        "set-proc-title no\n"
        "databases 1\n"
        'logfile ""\n'
        "loglevel notice\n"
        'dir "/srv/my berth/redis"\n'
        'aclfile "/srv/my berth/run/redis.acl"\n'
        'save ""\n'
        "appendonly yes\n"
        "appendfsync everysec\n"
        "auto-aof-rewrite-min-size 16mb\n"
        "maxmemory 256mb\n"
        "maxmemory-policy noeviction\n"
        "maxmemory-clients 64mb\n"
        "client-query-buffer-limit 16mb\n"
        "proto-max-bulk-len 8mb\n"
        "maxclients 4096\n"
        "tcp-keepalive 60\n"
    )


def test_acl_file_contains_passwords_as_hashes_only() -> None:
    passwords = {"control": "one", "node-a": "two", "node-b": "three"}
    nodes = [configs.RedisNode("a", "two", engine=True), configs.RedisNode("b", "three")]
    text = configs.redis_acl("one", nodes)
    assert text.splitlines()[0] == "user default reset off"
    for name, password in passwords.items():
        digest = hashlib.sha256(password.encode()).hexdigest()
        line = next(line for line in text.splitlines() if line.startswith(f"user {name} "))
        assert f" on #{digest} " in line
        assert password not in line.split()


def door(instance: Instance) -> dict[str, Any]:
    text = configs.front_door(instance, gateway_secret="path-secret", certificates=CERTIFICATES)
    found: dict[str, Any] = json.loads(text)
    return found


def handlers(routes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every handler of these routes, including nested ones."""
    for route in routes:
        for handler in route["handle"]:
            yield handler
            yield from handlers(handler.get("routes", []))
            for answered in handler.get("handle_response", []):
                yield from handlers(answered["routes"])


def test_front_door_hides_its_software_and_never_cuts_a_stream(fixed: Instance) -> None:
    config = door(fixed)
    assert config["admin"]["disabled"] is True
    assert set(config["apps"]) == {"http"}
    servers = config["apps"]["http"]["servers"]
    assert set(servers) == {"front-door", "agents"}
    assert servers["agents"]["listen"] == ["unix/.gateway/portal.sock|0666"]
    server = servers["front-door"]
    assert server["listen"] == ["unix/.caddy/front-door.sock|0600"]
    assert server["listener_wrappers"] == [{"wrapper": "proxy_protocol", "timeout": 5 * 10**9}]
    assert server["automatic_https"] == {"disable": True}
    assert server["read_header_timeout"] == 15 * 10**9
    assert server["read_timeout"] == 30 * 10**9
    assert "write_timeout" not in server and "logs" not in server
    assert server["max_header_bytes"] == 65_536
    assert "trusted_proxies" not in server
    assert config["logging"]["logs"]["default"]["encoder"]["fields"]["request"] == {"filter": "delete"}


def test_only_trusted_proxies_set_the_client_address(fixed: Instance) -> None:
    behind = replace(fixed, bind="::", trusted_proxies=("10.0.0.7", "10.1.0.0/16"))
    server = door(behind)["apps"]["http"]["servers"]["front-door"]
    assert "[::]:8000" in configs.front_door_argv(behind, Path("/caddy"))
    ranges = ["10.0.0.7", "10.1.0.0/16"]
    assert server["trusted_proxies"] == {"source": "static", "ranges": ranges}
    dropped = ["X-Forwarded-*", "X-Berth-*", "X-Real-Ip", "Forwarded"]
    [strict] = [
        route
        for route in door(fixed)["apps"]["http"]["servers"]["front-door"]["routes"]
        if route["handle"][0].get("request") == {"delete": dropped}
    ]
    assert "match" not in strict
    [route] = [
        route for route in server["routes"] if route["handle"][0].get("request") == {"delete": dropped}
    ]
    assert route["match"] == [{"not": [{"remote_ip": {"ranges": ranges}}]}]


def test_https_responses_have_hsts(fixed: Instance) -> None:
    """Responses in a browser: tests/workspaces/gateway/test_front_door.py."""

    def first(public_url: str) -> dict[str, Any]:
        server = door(replace(fixed, public_url=public_url))["apps"]["http"]["servers"]["front-door"]
        said: dict[str, Any] = server["routes"][0]["handle"][0]["response"]["set"]
        return said

    expected = {"Strict-Transport-Security": ["max-age=31536000; includeSubDomains"]}
    assert first("https://gpu.example.org") == expected
    assert first("http://localhost:8000") == {}


def test_front_door_has_only_the_expected_upstreams(fixed: Instance) -> None:
    server = door(fixed)["apps"]["http"]["servers"]["front-door"]
    proxies = [handler for handler in handlers(server["routes"]) if handler["handler"] == "reverse_proxy"]
    dialled = [one["upstreams"][0]["dial"] for one in proxies]
    onward = [
        "{http.vars.X-Berth-Gateway}",
        "unix/{http.regexp.socket.1}/app.{http.regexp.socket.2}.sock",
        "{http.vars.X-Berth-Http}",
        "{http.vars.X-Berth-Https}",
    ]
    guarded = [
        "127.0.0.1:8005",  # forward-auth
        "unix/{http.reverse_proxy.header.X-Berth-Stream-Place}",  # what lasts, by way of the gateway process
        "{http.reverse_proxy.header.X-Berth-Gateway}",
        "unix/{http.regexp.socket.1}/app.{http.regexp.socket.2}.sock",
        "{http.reverse_proxy.header.X-Berth-Http}",
        "{http.reverse_proxy.header.X-Berth-Https}",
    ]
    assert dialled == [
        *onward,  # what has come back from the gateway process
        *guarded,  # transfers of files
        "127.0.0.1:8005",  # a workspace's own paths
        "unix/{http.regexp.pass.1}/app.{http.regexp.pass.2}.sock",  # who has a pass
        *guarded,  # the app
        "127.0.0.1:8005",  # event streams
        "tcp4/127.0.0.1:8001",  # counts large answers of SAML providers
        "127.0.0.1:8001",
        "tcp/127.0.0.1:8001",  # who may send a large body
        "127.0.0.1:8001",
        "127.0.0.1:8005",  # liveness of this host
        "127.0.0.1:8001",
        "127.0.0.1:8001",
    ]
    without = door(replace(fixed, passes_dir=None))["apps"]["http"]["servers"]["front-door"]
    assert "http.matchers.file" not in json.dumps(without)
    asking = [one for one in proxies if "rewrite" in one]
    uris = ["/healthz/live?", "/gateway/large-body?", "/healthz/live?"]
    assert [one["rewrite"]["uri"] for one in asking[2:]] == uris
    assert [one["upstreams"][0]["max_requests"] for one in asking[2:4]] == [16, 24]
    for auth in asking[:2]:
        assert auth["rewrite"] == {"method": "GET", "uri": "/gateway/path-secret/auth?"}
        # Only a 200 response with an upstream is followed.
        assert [one["match"]["status_code"] for one in auth["handle_response"]] == [[200]] * 5
    for one in proxies:
        assert one["transport"]["network_proxy"] == {"from": "none"}
        assert one["transport"]["compression"] is False
        assert "load_balancing" not in one
    portal = [one for one in proxies if one not in asking and "{" not in one["upstreams"][0]["dial"]]
    for one in portal:
        assert one["headers"]["request"]["set"] == {
            front_door.TOKEN_HEADER: [front_door.token_of("path-secret")]
        }
    buffers = [one.get("request_buffers") for one in portal[-4:]]
    sizes = (proxy.MAX_SAML_BYTES, proxy.MAX_BODY_BYTES, proxy.SMALL_BODY_BYTES)
    assert [size for size in buffers if size] == [size + 1 for size in sizes]


def test_only_admitted_requests_get_the_long_timeout(fixed: Instance) -> None:
    server = door(fixed)["apps"]["http"]["servers"]["front-door"]
    slow = {"handler": "timeouts", "read_timeout": 3600 * 10**9}
    for handler in handlers(server["routes"]):
        for answered in handler.get("handle_response", []) if "/auth?" in str(handler.get("rewrite")) else ():
            assert answered["routes"][-1]["handle"][-2] == slow
    [host] = [at for at, route in enumerate(server["routes"]) if "(ws-" in str(route.get("match"))]
    assert slow not in list(handlers(server["routes"][host + 1 :]))


def test_only_the_gateway_process_chooses_upstreams(fixed: Instance) -> None:
    """This route comes first, because later ones drop foreign headers."""
    server = door(fixed)["apps"]["http"]["servers"]["front-door"]
    assert server["routes"][1]["match"] == [{"header": {"Transfer-Encoding": ["*"]}}]
    onward = server["routes"][2]
    assert onward["match"] == [
        {"header": {front_door.ONWARD_HEADER: [front_door.gateway_process_token("path-secret")]}}
    ]
    assert onward["terminal"] is True
    assert front_door.gateway_process_token("path-secret") != front_door.token_of("path-secret")
    assert {"handler": "headers", "request": {"delete": ["X-Berth-*"]}} in onward["handle"]


@pytest.mark.parametrize("limit", [1, 9, 99, 1000, 4_194_304, 4_199_999])
def test_pattern_matches_numbers_above_the_limit(limit: int) -> None:
    pattern = re.compile(proxy.more_than(limit))
    near = {limit + step * 10**place for step in (-1, 0, 1) for place in range(9)}
    for number in sorted({0, *(one for one in near if one >= 0)}):
        for text in (str(number), f"00{number}"):
            assert bool(pattern.search(text)) == (number > limit), text


def test_path_with_quotes_cannot_add_a_redis_directive(tmp_path: Path) -> None:
    strange = Instance.from_environ({"BERTH_HOME": str(tmp_path / 'a" b\\c')})
    line = next(line for line in configs.redis_conf(strange).splitlines() if line.startswith("dir "))
    assert line == f'dir "{tmp_path}/a\\" b\\\\c/redis"'
