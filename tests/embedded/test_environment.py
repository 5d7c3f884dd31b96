from __future__ import annotations

import stat
from pathlib import Path

import pytest

from portal.embedded.environment import Instance, ensure_secrets
from provisioning.service.console import Problem
from provisioning.service.environ import bare_environ
from provisioning.service.files import write_file


def test_ports_and_addresses_derive_from_the_first_port() -> None:
    instance = Instance.from_environ({"BERTH_PORT": "9000", "BERTH_HOME": "/srv/berth"})
    assert (instance.port, instance.web_port, instance.redis_port) == (9000, 9001, 9002)
    assert instance.gateway_port == 9005
    assert instance.public_url == "http://localhost:9000"
    assert instance.agent_url == "http://127.0.0.1:9001"
    assert instance.bind == "127.0.0.1"


@pytest.mark.parametrize("value", ["http", "0", "65536", "-1", "80.5", "８０"])
def test_invalid_port_is_reported_with_its_variable(value: str) -> None:
    with pytest.raises(Problem, match="BERTH_PORT"):
        Instance.from_environ({"BERTH_PORT": value})


def test_two_services_on_one_port_are_refused() -> None:
    with pytest.raises(Problem, match="must differ"):
        Instance.from_environ({"BERTH_PORT": "9000", "BERTH_REDIS_PORT": "9001"})


@pytest.mark.parametrize("value", ["*", "a b", "a/b", "../a", "a~b", "-a", "é", "a" * 121])
def test_node_name_with_pattern_or_path_characters_is_refused(value: str) -> None:
    with pytest.raises(Problem, match="BERTH_NODE_NAME"):
        Instance.from_environ({"BERTH_NODE_NAME": value})


@pytest.mark.parametrize("value", ["berth.example.org", "ftp://berth.example.org", "https://"])
def test_non_web_address_is_refused(value: str) -> None:
    with pytest.raises(Problem, match="BERTH_PUBLIC_URL"):
        Instance.from_environ({"BERTH_PUBLIC_URL": value})


def test_instances_are_distinguished_by_their_resolved_home(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    real = Instance.from_environ({"BERTH_HOME": str(tmp_path / "real")})
    link = Instance.from_environ({"BERTH_HOME": str(tmp_path / "link")})
    other = Instance.from_environ({"BERTH_HOME": str(tmp_path / "other")})
    assert real.id == link.id != other.id


def test_node_plane_gets_no_secret_of_the_portal(instance: Instance) -> None:
    outer = {
        "PATH": "/usr/bin",
        "BERTH_SECRET_KEY": "s1",
        "BERTH_GATEWAY_SECRET": "s2",
        "BERTH_REDIS_URL": "redis://control:s3@x/0",
        "BERTH_REDIS_PASSWORD": "s4",
        "BERTH_ADMIN_PASSWORD": "s5",
        "DATABASE_URL": "postgres://u:s6@h/d",
        "PGPASSWORD": "s7",
        "BERTH_CONTROL_KEY": "s8",
        "BERTH_HEARTBEAT_S": "5",
        "BERTH_SERVICE": "other:up",
    }
    node = instance.node_environ(outer, node_password="node-password", node_key="node-key")
    url = f"redis://node-node-a:node-password@127.0.0.1:{instance.redis_port}/0"
    assert (node["BERTH_NODE_REDIS_URL"], node["BERTH_NODE_KEY"]) == (url, "node-key")
    assert node["BERTH_HEARTBEAT_S"] == "5"
    assert node["BERTH_NODE_NAME"] == "node-a"
    assert node["PATH"] == "/usr/bin"
    assert not [value for value in node.values() if value in {f"s{n}" for n in range(1, 9)} or "s3" in value]
    assert "BERTH_SERVICE" not in node
    assert bare_environ(outer) == {"PATH": "/usr/bin"}


def test_secrets_are_created_once_and_private(tmp_path: Path) -> None:
    first, made = ensure_secrets(tmp_path)
    again, made_again = ensure_secrets(tmp_path)
    assert made and not made_again
    assert first == again
    assert len(set(first.values())) == len(first) == 6
    assert all(len(value) >= 40 for value in first.values())
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "secrets").iterdir()} == {0o600}


def test_empty_secret_is_replaced_and_readable_one_is_protected(tmp_path: Path) -> None:
    first, _ = ensure_secrets(tmp_path)
    (tmp_path / "secrets" / "secret_key").write_text("")
    (tmp_path / "secrets" / "gateway_secret").chmod(0o644)
    second, made = ensure_secrets(tmp_path)
    assert made and second["secret_key"] and second["secret_key"] != first["secret_key"]
    assert second["gateway_secret"] == first["gateway_secret"]
    assert stat.S_IMODE((tmp_path / "secrets" / "gateway_secret").stat().st_mode) == 0o600


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("provisioning.service.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_passes_folder_is_in_memory_and_separate_per_instance(tmp_path: Path) -> None:
    one, other = (Instance.from_environ({"BERTH_HOME": str(tmp_path / name)}) for name in ("a", "b"))
    assert one.passes_dir is not None
    assert one.passes_dir.parent == Path("/dev/shm")
    assert one.passes_dir != other.passes_dir
    named = {"BERTH_HOME": str(tmp_path), "BERTH_PASSES_DIR": "/run/berth/passes"}
    assert Instance.from_environ(named).passes_dir == Path("/run/berth/passes")
    assert Instance.from_environ({**named, "BERTH_PASSES_DIR": "none"}).passes_dir is None
    with pytest.raises(Problem, match="BERTH_PASSES_DIR"):
        Instance.from_environ({**named, "BERTH_PASSES_DIR": "passes"})
