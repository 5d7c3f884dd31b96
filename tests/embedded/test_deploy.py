"""compose.yaml, the Dockerfile and what they call. They are read here, not run: that needs an engine."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from typing import Any

import pytest
import yaml

from portal.embedded.environment import ROOT, Instance
from provisioning.signing import public_text

# Of what may be left off as a whole.
OPTIONAL_SECRETS = {"BERTH_PROXY_SECRET", "BERTH_AUDIT_WEBHOOK_SECRET", "BERTH_OIDC_CLIENT_SECRET"}
CONTROL_PLANE = {"web", "gateway", "control", "beat", "migrate"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return loaded


def test_every_process_of_the_embedded_mode_is_there(compose: dict[str, Any]) -> None:
    others = {"node", "redis", "front-door", "postgres", "render"}
    assert set(compose["services"]) == CONTROL_PLANE | others


def test_only_the_control_plane_has_the_database_and_the_secrets(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        environment = service.get("environment", {})
        for variable in ("DATABASE_URL", "BERTH_SECRET_KEY", "BERTH_REDIS_URL", "BERTH_CONTROL_KEY"):
            # `render` has it for a moment, to write the public one.
            wanted = name in CONTROL_PLANE or (variable, name) == ("BERTH_CONTROL_KEY", "render")
            assert (variable in environment) == wanted, (name, variable)
    node = compose["services"]["node"]["environment"]
    assert not [name for name in node if "SECRET" in name or "PASSWORD" in name]
    assert node["BERTH_NODE_REDIS_URL"].startswith("redis://node-${BERTH_NODE_NAME")
    assert [name for name in node if name.endswith("_KEY")] == ["BERTH_NODE_KEY"]


def test_no_secret_is_on_a_command_line(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        words = " ".join([*service.get("command", []), *service.get("healthcheck", {}).get("test", [])])
        assert "PASSWORD" not in words and "SECRET" not in words


def test_secrets_have_no_default(compose: dict[str, Any]) -> None:
    text = (ROOT / "compose.yaml").read_text()
    for variable, rest in re.findall(r"\$\{(\w+)(:[^}]*)?\}", text):
        if variable.endswith(("_KEY", "_SECRET", "REDIS_PASSWORD", "POSTGRES_PASSWORD")):
            assert rest == ":-" if variable in OPTIONAL_SECRETS else rest.startswith(":?"), variable


def test_the_example_names_every_variable() -> None:
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text()))
    named = set(re.findall(r"^(\w+)=", (ROOT / "deploy.env.example").read_text(), flags=re.MULTILINE))
    assert used == named


def test_volumes_and_dependencies_exist(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(compose["volumes"])
        for name, rule in service.get("depends_on", {}).items():
            other = compose["services"][name]
            if rule["condition"] == "service_healthy":
                assert "healthcheck" in other, name
            else:
                assert other["restart"] == "no", name


def test_what_the_dockerfile_copies_is_there_and_reaches_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            source = line.split()[1]
            assert (ROOT / source).exists(), source
            allowed = source if not source.startswith("requirements/") else "requirements/*.lock"
            assert f"!{allowed}" in ignored, source


def test_render_writes_what_the_servers_read(instance: Instance) -> None:
    environ = {
        **os.environ,
        **instance.variables(),
        "BERTH_GATEWAY_SECRET": "gateway-secret",
        "BERTH_REDIS_PASSWORD": "control-password",
        "BERTH_NODE_REDIS_PASSWORD": "node-password",
        "BERTH_CONTROL_KEY": "c0" * 32,
        "BERTH_NODE_KEY": "a0" * 32,
    }
    argv = [sys.executable, "-m", "portal.embedded", "render"]
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = {path.name: path for path in instance.run_dir.iterdir()}
    certificates = written.pop("tls")
    expected = {"redis.conf", "redis.acl", "front-door.json"}
    assert set(written) == expected
    written |= {path.name: path for path in certificates.iterdir()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written.values()} == {0o600}
    assert "/gateway/gateway-secret/auth" in written["front-door.json"].read_text()
    assert not (instance.home / "secrets").exists()
    public = {path.name: path.read_text().strip() for path in instance.keys_dir.rglob("*.pub")}
    assert public == {
        "control.pub": public_text("c0" * 32),
        f"{instance.node_name}.pub": public_text("a0" * 32),
    }

    del environ["BERTH_NODE_REDIS_PASSWORD"]
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "  ✗ BERTH_NODE_REDIS_PASSWORD must be set. Copy deploy.env.example and fill it in."
    ]
