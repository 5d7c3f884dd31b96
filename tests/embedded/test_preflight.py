from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from portal.embedded import ports, preflight
from portal.embedded.environment import Instance
from provisioning.service import home, instance_lock
from provisioning.service.console import Problem
from provisioning.service.environ import ROOT


def command(instance: Instance, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "portal.embedded", *arguments],
        cwd=ROOT,
        env={**os.environ, **instance.variables(), "BERTH_SKIP_NOTEBOOK": "1", **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_port_in_use_is_reported_with_its_process_and_the_fix(instance: Instance) -> None:
    with socket.create_server(("127.0.0.1", instance.port)):
        done = command(instance, "up")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    (line,) = done.stderr.splitlines()
    assert f"Port {instance.port} (BERTH_PORT) is used by" in line
    assert f"(process {os.getpid()})" in line
    assert "BERTH_PORT=" in line


@pytest.mark.parametrize("which", ["web_port", "redis_port", "gateway_port"])
def test_internal_ports_are_checked(instance: Instance, which: str) -> None:
    port = getattr(instance, which)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Problem, match=str(port)):
        ports.check(instance)
    ports.check(instance)


@pytest.mark.parametrize("which", ["port", "web_port", "redis_port", "gateway_port"])
def test_reserved_ports_stay_free_until_services_bind(instance: Instance, which: str) -> None:
    port = getattr(instance, which)
    with ports.hold_ports(instance):
        with socket.socket() as outgoing, pytest.raises(OSError, match="in use"):
            # As the kernel does for outgoing connections: without SO_REUSEADDR.
            outgoing.bind(("127.0.0.1", port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        ports.check(instance)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Problem, match=str(port)):
        ports.check(instance)


def test_port_in_use_is_reported_before_installation(instance: Instance) -> None:
    """By a Python without packages, as `make up` runs it on a new machine."""
    script = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); " + (
        f"made = runpy.run_path({str(ROOT / 'scripts' / 'venv.py')!r}, run_name='venv'); "
        "made['hold_ports']().__enter__()"
    )
    with socket.create_server(("127.0.0.1", instance.web_port)):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", script],
            env=instance.variables(), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.stderr.splitlines()[-1].startswith("provisioning.service.console.Problem"), done.stderr
    assert f"Port {instance.web_port} (BERTH_WEB_PORT) is used by" in done.stderr


def test_privileged_port_is_reported(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_address: str, _port: int) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ports.processes, "port_is_free", denied)
    with pytest.raises(Problem, match="above 1023"):
        ports.check(replace(instance, port=80))


def test_home_that_is_a_file_is_reported_in_one_line(instance: Instance) -> None:
    instance.home.write_text("in the way")
    done = command(instance, "up")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    (line,) = done.stderr.splitlines()
    assert f"BERTH_HOME {instance.home} cannot be written" in line and "BERTH_HOME=" in line


def test_home_without_write_permission_is_reported(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(home.tempfile, "NamedTemporaryFile", denied)
    with pytest.raises(Problem, match=r"cannot be written \(Permission denied\).*BERTH_HOME="):
        preflight.prepare_home(instance.home)


def test_full_disk_is_named_in_the_error(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(home.tempfile, "NamedTemporaryFile", full)
    with pytest.raises(Problem, match=r"disk under .* is full"):
        preflight.prepare_home(instance.home)


def test_too_little_disk_space_is_reported(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=100 * 1024 * 1024)
    monkeypatch.setattr(home.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(Problem, match="Only 100 MiB are free"):
        preflight.prepare_home(instance.home)


def test_missing_modules_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MODULES", ("django", "no_such_module", "nor_this"))
    with pytest.raises(Problem, match=r"modules no_such_module, nor_this are missing.*make up"):
        preflight.find_binaries()


def test_bundled_servers_are_found() -> None:
    found = preflight.find_binaries()
    assert os.access(found.redis_server, os.X_OK)
    assert os.access(found.caddy, os.X_OK)


def test_invalid_setting_is_reported_in_one_line(instance: Instance) -> None:
    done = command(instance, "up", BERTH_PORT="eighty")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "  ✗ BERTH_PORT is “eighty”, which is not a port. Set a number from 1 to 65535."
    ]


def test_unreadable_database_is_reported_in_one_line(instance: Instance, tmp_path: Path) -> None:
    done = command(instance, "up", DATABASE_URL=f"sqlite:///{tmp_path}/missing/folder/db.sqlite3")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert "Database error: unable to open database file Check DATABASE_URL" in done.stderr


def test_second_up_names_the_running_instance(instance: Instance) -> None:
    preflight.prepare_home(instance.home)
    with instance_lock.hold(instance.run_dir, refusal=lambda _: Problem("taken")):
        done = command(instance, "up")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == (
        f"  ✗ Berth already runs from {instance.home}: {instance.public_url} "
        "Check it with `make status`, stop it with `make down`."
    )


def test_down_and_status_when_not_running(instance: Instance) -> None:
    status = command(instance, "status")
    assert status.returncode == 3 and "not running" in status.stdout
    down = command(instance, "down")
    assert down.returncode == 0 and "not running" in down.stdout


def test_lock_is_released_when_its_holder_is_killed(instance: Instance) -> None:
    preflight.prepare_home(instance.home)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys; from provisioning.service import instance_lock as l;"
            "from portal.embedded.environment import Instance\n"
            "with l.hold(Instance.from_environ(os.environ).run_dir, refusal=ValueError):\n"
            " print('held', flush=True); sys.stdin.read()",
        ],
        cwd=ROOT,
        env={**os.environ, **instance.variables()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert instance_lock.is_held(instance.run_dir)
    finally:
        holder.kill()
        holder.communicate()
    assert not instance_lock.is_held(instance.run_dir)


def test_invalid_sign_in_provider_stops_the_start(tmp_path):
    path = tmp_path / "providers.toml"
    path.write_text(
        '[[provider]]\nkind = "oidc"\nid = "corp"\nname = "Corp"\nclient_id = "b"\nissuer = "http://x.org"'
    )
    with pytest.raises(Problem, match="write an https address"):
        preflight.check_sign_in_providers({"BERTH_SIGN_IN_PROVIDERS": str(path)})
    preflight.check_sign_in_providers({})
