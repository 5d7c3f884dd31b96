from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from portal.embedded import configs, traefik
from portal.embedded.environment import Instance
from provisioning.node.gateway import Certificates

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
        "maxmemory-policy volatile-ttl\n"
        "maxclients 4096\n"
        "tcp-keepalive 60\n"
    )


def test_passwords_stand_in_the_acl_file_as_hashes_only() -> None:
    passwords = {"control": "one", "node-a": "two", "node-b": "three"}
    nodes = [configs.RedisNode("a", "two", engine=True), configs.RedisNode("b", "three")]
    text = configs.redis_acl("one", nodes)
    assert text.splitlines()[0] == "user default reset off"
    for name, password in passwords.items():
        digest = hashlib.sha256(password.encode()).hexdigest()
        line = next(line for line in text.splitlines() if line.startswith(f"user {name} "))
        assert f" on #{digest} " in line
        assert password not in line.split()


def test_traefik_is_quiet_outward_and_never_cuts_a_stream(fixed: Instance) -> None:
    config = json.loads(configs.traefik_static(fixed, gateway_secret="path-secret"))
    assert config["global"] == {"checkNewVersion": False, "sendAnonymousUsage": False}
    assert "api" not in config and "accessLog" not in config and "metrics" not in config
    web = config["entryPoints"]["web"]
    assert list(config["entryPoints"]) == ["web"]
    assert web["address"] == "127.0.0.1:8000"
    assert web["transport"]["respondingTimeouts"]["readTimeout"] == "3600s"
    assert web["http"]["maxHeaderBytes"] == 65_536
    assert web["transport"]["respondingTimeouts"]["writeTimeout"] == "0s"
    assert web["forwardedHeaders"] == {"insecure": False}
    assert set(config["providers"]) == {"providersThrottleDuration", "file", "http"}
    assert config["providers"]["http"]["endpoint"] == "http://127.0.0.1:8005/gateway/path-secret/routes"
    assert config["providers"]["file"] == {"filename": "/srv/my berth/run/traefik-routes.yml", "watch": False}


def test_only_named_proxies_may_speak_for_the_client(fixed: Instance) -> None:
    behind = replace(fixed, bind="::", trusted_proxies=("10.0.0.7", "10.1.0.0/16"))
    web = json.loads(configs.traefik_static(behind, gateway_secret="s"))["entryPoints"]["web"]
    assert web["address"] == "[::]:8000"
    assert web["forwardedHeaders"] == {"insecure": False, "trustedIPs": ["10.0.0.7", "10.1.0.0/16"]}


def test_over_https_every_answer_tells_browsers_to_keep_to_it(fixed: Instance) -> None:
    def entry(public_url: str) -> dict[str, Any]:
        text = configs.traefik_static(replace(fixed, public_url=public_url), gateway_secret="s")
        http: dict[str, Any] = json.loads(text)["entryPoints"]["web"]["http"]
        return http

    assert entry("https://gpu.example.org")["middlewares"] == ["transport-security@file"]
    assert "middlewares" not in entry("http://localhost:8000")
    urls = dict.fromkeys(("web_url", "gateway_url", "outage_url"), "http://127.0.0.1:1")
    routes = json.loads(
        configs.traefik_routes(
            domain="gpu.example.org", gateway_secret="s", certificates=CERTIFICATES, **urls
        )
    )
    assert routes["http"]["middlewares"]["transport-security"] == {
        "headers": {"stsSeconds": 31_536_000, "stsIncludeSubdomains": True, "forceSTSHeader": True}
    }


def test_the_routes_of_the_portal() -> None:
    routes = json.loads(
        configs.traefik_routes(
            domain="gpu.example.org",
            web_url="http://127.0.0.1:8001",
            gateway_url="http://127.0.0.1:8005",
            outage_url="http://127.0.0.1:8004",
            gateway_secret="path-secret",
            certificates=CERTIFICATES,
        )
    )["http"]
    routers = routes["routers"]
    assert routers["health"]["rule"] == "Host(`health.berth.internal`)"
    assert routers["health"]["service"] == "ping@internal"
    assert routers["portal"]["rule"] == traefik.PORTAL
    assert routers["portal-writes"]["rule"].startswith(f"{traefik.PORTAL} && (")
    assert routers["portal"]["priority"] < min(
        router["priority"] for name, router in routers.items() if name != "portal"
    )
    for name, router in routers.items():
        assert ("front-door" in router["middlewares"]) if name != "health" else ("middlewares" not in router)
    assert "portal-bodies" in routers["portal-writes"]["middlewares"]
    services = {name: router["service"] for name, router in routers.items() if name != "health"}
    assert services.pop("portal") == services.pop("portal-writes") == "portal"
    assert set(services.values()) == {"gateway"}
    assert routers["ws-fallback"]["priority"] > routers["portal-streams"]["priority"]
    auth = routes["middlewares"]["ws-auth"]["forwardAuth"]
    assert auth["address"] == "http://127.0.0.1:8005/gateway/path-secret/auth"
    assert auth["trustForwardHeader"] is False
    assert auth["authResponseHeaders"] == ["Authorization", "Cookie", "X-Berth-Socket"]
    assert routes["services"]["portal"]["loadBalancer"]["servers"] == [{"url": "http://127.0.0.1:8001"}]
    assert routes["services"]["gateway"]["loadBalancer"]["servers"] == [{"url": "http://127.0.0.1:8005"}]


def test_a_path_with_quotes_cannot_add_a_directive_to_redis(tmp_path: Path) -> None:
    strange = Instance.from_environ({"BERTH_HOME": str(tmp_path / 'a" b\\c')})
    line = next(line for line in configs.redis_conf(strange).splitlines() if line.startswith("dir "))
    assert line == f'dir "{tmp_path}/a\\" b\\\\c/redis"'
