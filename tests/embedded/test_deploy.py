"""compose.yaml, the Dockerfile and their commands, statically; `make test-compose` runs them."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from typing import Any

import pytest
import yaml

from portal.embedded.environment import Instance
from provisioning.service.environ import ROOT
from provisioning.signing import public_text
from tests.compose.stack import BUILD_ARGUMENTS

# Of optional services.
OPTIONAL_SECRETS = {"BERTH_PROXY_SECRET", "BERTH_AUDIT_WEBHOOK_SECRET", "BERTH_OIDC_CLIENT_SECRET"}
DOORS = {"nodes-door", "nodes-guard", "redis-door"}
CONTROL_PLANE = {"web", "gateway", "control", "beat", "migrate"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return loaded


def test_every_process_of_the_embedded_mode_has_a_service(compose: dict[str, Any]) -> None:
    others = {"node", "redis", "front-door", "postgres", "render"}
    assert set(compose["services"]) == CONTROL_PLANE | others | DOORS


def volumes_of(service: dict[str, Any]) -> dict[str, str]:
    """The mount point of each volume, with `:ro` if read-only."""
    return dict(volume.split(":", 1) for volume in service.get("volumes", []))


def test_authority_key_is_mounted_only_where_it_signs(compose: dict[str, Any]) -> None:
    services = compose["services"]
    having = {name for name, service in services.items() if "authority" in volumes_of(service)}
    assert having == {"render", "web"}
    assert volumes_of(services["web"])["authority"] == "/var/lib/berth/authority:ro"
    for name in having:
        assert services[name]["environment"]["BERTH_TLS_DIR"] == "/var/lib/berth/authority"


def test_doors_for_machines_have_minimal_mounts(compose: dict[str, Any]) -> None:
    services = compose["services"]
    expected = {
        "nodes-door": {"doors": "/var/lib/berth/doors:ro", "door-socket": "/var/lib/berth/door-socket"},
        "nodes-guard": {"door-socket": "/var/lib/berth/door-socket:ro"},
        "redis-door": {"doors": "/var/lib/berth/doors:ro"},
    }
    assert set(expected) == DOORS
    for name, volumes in expected.items():
        assert services[name]["profiles"] == ["nodes"], "only where machines may join"
        assert volumes_of(services[name]) == volumes
        environment = services[name].get("environment", {})
        assert not [each for each in environment if "SECRET" in each or "PASSWORD" in each or "KEY" in each]
        assert services[name]["read_only"] is True
    for name in ("redis", "front-door", "node", "control", "gateway", "beat", "migrate"):
        assert not {"doors", "door-socket"} & set(volumes_of(services[name])), name
    ports = services["web"]["environment"]
    assert ports["BERTH_NODES_PORT"] == "8007"
    assert "${BERTH_NODES_BIND:-0.0.0.0}:8007" in services["nodes-guard"]["command"]
    assert "${BERTH_NODES_BIND:-0.0.0.0}:8008" in services["redis-door"]["command"]
    assert services["nodes-door"]["working_dir"] == "/var/lib/berth/door-socket"


def test_image_owns_the_folders_of_volumes(compose: dict[str, Any]) -> None:
    made = (ROOT / "Dockerfile").read_text()
    folders = {path.partition(":")[0] for path in volumes_of(compose["services"]["render"]).values()}
    assert "/var/lib/berth/authority" in folders
    for folder in folders:
        assert re.search(rf"{folder}(\s|$)", made, flags=re.MULTILINE), folder


def test_render_distributes_certificates_without_the_authority_key(instance: Instance) -> None:
    environ = {
        **os.environ,
        **instance.variables(),
        "BERTH_GATEWAY_SECRET": "gateway-secret",
        "BERTH_REDIS_PASSWORD": "control-password",
        "BERTH_NODE_REDIS_PASSWORD": "node-password",
        "BERTH_CONTROL_KEY": "c0" * 32,
        "BERTH_NODE_KEY": "a0" * 32,
        "BERTH_NODES_ADDRESS": "berth.example.org",
        "BERTH_TLS_DIR": str(instance.home / "authority"),
    }
    # As an earlier version left it, where Redis and the front door read.
    old = instance.run_dir / "tls"
    old.mkdir(parents=True)
    (old / "authority.key").write_text("a key")
    argv = [sys.executable, "-m", "portal.embedded", "render"]
    for _ in range(2):
        done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    home = instance.home
    assert not old.exists()
    assert [path.parent for path in home.rglob("authority.key")] == [home / "authority"]
    assert {path.name for path in (home / "run" / "front-door").iterdir()} == {
        "authority.pem",
        "front-door.pem",
        "front-door.key",
    }
    doors = {path.name for path in (home / "doors" / "tls").iterdir()}
    assert doors == {"authority.pem", "nodes-door.pem", "nodes-door.key"}
    written = json.loads((home / "doors" / "nodes-door.json").read_text())
    assert written["apps"]["http"]["servers"]["nodes"]["listen"] == ["unix/nodes-door.sock|0600"]
    text = json.dumps(written) + (home / "run" / "front-door.json").read_text()
    assert str(home / "authority") not in text
    for path in (*(home / "doors").rglob("*"), *(home / "run" / "front-door").iterdir()):
        assert path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o600
    key = (home / "authority" / "authority.pem").read_text()
    assert (home / "doors" / "tls" / "authority.pem").read_text() == key


def test_only_the_control_plane_has_the_database_and_the_secrets(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        environment = service.get("environment", {})
        for variable in ("DATABASE_URL", "BERTH_SECRET_KEY", "BERTH_REDIS_URL", "BERTH_CONTROL_KEY"):
            # `render` has it for a moment, to write the public one.
            expected = name in CONTROL_PLANE or (variable, name) == ("BERTH_CONTROL_KEY", "render")
            assert (variable in environment) == expected, (name, variable)
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


def test_example_file_has_every_variable() -> None:
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text()))
    named = set(re.findall(r"^(\w+)=", (ROOT / "deploy.env.example").read_text(), flags=re.MULTILINE))
    assert used == named


def test_gpu_overlay_changes_only_the_node_service(compose: dict[str, Any]) -> None:
    added = yaml.safe_load((ROOT / "compose.gpu.yaml").read_text())["services"]
    assert set(added) == {"node"} <= set(compose["services"])
    assert added["node"]["build"]["args"] == {"LOCK": "gpu"}
    [device] = added["node"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert added["node"]["image"] != compose["services"]["node"]["image"]


def test_only_the_node_service_has_relaxed_confinement(compose: dict[str, Any]) -> None:
    loose = {
        name: service["security_opt"]
        for name, service in compose["services"].items()
        if "no-new-privileges:true" not in service.get("security_opt", ["no-new-privileges:true"])
    }
    assert loose == {"node": ["seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"]}


def test_volumes_and_dependencies_exist(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(compose["volumes"])
        for name, rule in service.get("depends_on", {}).items():
            other = compose["services"][name]
            if rule["condition"] == "service_healthy":
                assert "healthcheck" in other, name
            else:
                assert other["restart"] == "no", name


def test_files_copied_by_the_dockerfile_exist_and_are_in_the_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            source = line.split()[1]
            for lock in ("portal", "gpu"):
                assert (ROOT / source.replace("${LOCK}", lock)).exists(), source
            allowed = source if not source.startswith("requirements/") else "requirements/*.lock"
            assert f"!{allowed}" in ignored, source


def test_build_accepts_a_package_index() -> None:
    taken = set(re.findall(r"^ARG (PIP_\w+)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
    assert taken == {name for name in BUILD_ARGUMENTS if name.startswith("PIP_")} != set()


def test_render_writes_server_configurations_and_reports_missing_variables(instance: Instance) -> None:
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
