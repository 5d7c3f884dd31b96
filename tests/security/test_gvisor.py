"""Attacks from a workspace in a pool that requires gVisor, with the real runsc; and machines without it."""

from __future__ import annotations

import contextlib
import http.server
import os
import platform
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioning.drivers.local import cgroups, gvisor, isolation, limits, network, processes
from provisioning.drivers.local.driver import LocalDriver
from provisioning.errors import InvalidSpec, MissingDependency, NoCapacity
from provisioning.node.local_settings import apply_local_settings
from provisioning.types import (
    Capability,
    DeviceGrant,
    Isolation,
    NodePlacement,
    ObservedState,
    Placement,
    PoolConfig,
    ResourceRequest,
    WorkspaceSpec,
)
from tests.provisioning.local.local_support import Pool, ask

HERE = Path(__file__).resolve()
# Numbers of x86-64. gVisor has no implementation of these, or its own.
SYSTEM_CALLS = {
    "io_uring_setup": (425, 8, 0), "bpf": (321, 0, 0, 0), "userfaultfd": (323, 0), "keyctl": (250, 0, 0, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0), "add_key": (248, 0, 0, 0, 0, 0), "init_module": (175, 0, 0, 0),
    "kexec_load": (246, 0, 0, 0, 0), "open_by_handle_at": (304, -1, 0, 0), "fsopen": (430, 0, 0),
    "mount": (165, 0, 0, 0, 0, 0), "reboot": (169, 0, 0, 0, 0),
}  # fmt: skip


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    found = isolation.probe()
    if not found.gvisor or found.network is None:
        pytest.skip(found.gvisor_reason or found.network_reason)
    made = Pool(tmp_path, sandbox="gvisor")
    yield made
    made.close()
    assert network.egress_processes(tmp_path / "berth" / "local") == []


def of_gvisor(pool: Pool, spec: WorkspaceSpec) -> list[int]:
    """Return the processes of gVisor on this machine: those with their own seccomp filter."""
    found = processes.scan(pool.driver.instance, spec.ref.external_name)
    return [each.pid for each in found if processes._status(each.pid, "Seccomp") == ["2"]]


def shell_output(seen: Any, command: str) -> str:
    return str(ask(seen, f"os.popen({command!r}).read()"))


# --- kernel ---------------------------------------------------------------------------------------


def test_workspace_sees_the_gvisor_kernel_only(pool: Pool) -> None:
    spec = pool.spec()
    seen = pool.run(spec)
    assert gvisor.BOOT_MESSAGE in shell_output(seen, "dmesg")
    for place in ("os.uname().release", "open('/proc/version').read()"):
        assert os.uname().release not in ask(seen, place)
    assert ask(seen, "os.getuid()") == 1000
    assert "CapEff:\t0000000000000000" in ask(seen, "open('/proc/self/status').read()")
    if platform.machine() == "x86_64":
        libc = "__import__('ctypes').CDLL(None)"
        for name, call in SYSTEM_CALLS.items():
            assert ask(seen, f"{libc}.syscall{call!r}") == -1, name


def test_user_namespace_inside_does_not_exist_on_the_host(pool: Pool) -> None:
    """gVisor emulates it; nothing happens in the host kernel."""
    spec = pool.spec()
    seen = pool.run(spec)
    folder = pool.driver._dir(spec.ref)

    def namespaces() -> set[str]:
        found = processes.scan(pool.driver.instance, folder.name)
        return {os.readlink(f"/proc/{each.pid}/ns/user") for each in found}  # noqa: PTH115

    before = namespaces()
    sleeping = "__import__('subprocess').Popen(['unshare', '-Ur', 'sh', '-c', 'id -u; sleep 60'], stdout=-1)"
    assert ask(seen, f"{sleeping}.stdout.readline().decode()") == "0\n"
    assert namespaces() == before


def test_gvisor_runs_with_seccomp_and_no_network_capabilities(pool: Pool) -> None:
    """An escape from gVisor ends in a process with few permitted system calls."""
    spec = pool.spec()
    pool.run(spec)
    launched = pool.driver._dir(spec.ref).launched()
    assert launched is not None
    outside = os.readlink(f"/proc/{processes.sandbox_init(launched.pid)}/ns/user")  # noqa: PTH115
    found = of_gvisor(pool, spec)
    assert len(found) >= 2, "gVisor and what reaches files for it"
    for pid in found:
        assert os.readlink(f"/proc/{pid}/ns/user") != outside  # noqa: PTH115
        assert processes._status(pid, "NoNewPrivs") == ["1"]
        if isolation.probe().uids is not None:
            assert processes.user_of(pid) != os.geteuid()


# --- files ----------------------------------------------------------------------------------------


def test_neighbours_and_host_are_not_visible(pool: Pool) -> None:
    theirs = pool.spec(owner="grace")
    assert shell_output(pool.run(theirs), "echo secret > ~/diary; cat ~/diary") == "secret\n"
    mine = pool.spec()
    seen = pool.run(mine)
    assert shell_output(seen, "find /home /run /tmp /var -name diary 2>/dev/null") == ""
    assert ask(seen, "os.listdir('/home')") == ["ada"]
    for path in (str(HERE), "/etc/shadow", str(pool.home), "/berth", "/proc/1/root/berth", "/root/.ssh"):
        assert ask(seen, f"os.path.exists({path!r})") is False, path
    listed = shell_output(seen, "cat /proc/*/cmdline").replace("\0", " ")
    assert "runsc" not in listed and theirs.ref.external_name not in listed
    environ = shell_output(seen, "cat /proc/*/environ")
    assert mine.agent.token not in environ and "BERTH_NODE" not in environ


def test_system_is_read_only_and_the_home_is_the_real_one(pool: Pool) -> None:
    seen = pool.run(pool.spec())
    for path in (
        "/usr/planted",
        "/etc/planted",
        "/planted",
        "/run/berth/agent/planted",
        "/run/berth/node/planted",
    ):
        assert ask(seen, f"open({path!r}, 'w')") in ("OSError", "PermissionError"), path
    shell_output(seen, "echo kept > ~/file; ln -s file ~/link")
    home = pool.home / "homes" / "analysts" / "ada"
    assert (home / "file").read_text() == "kept\n"
    (home / "file").write_text("changed outside\n")
    assert shell_output(seen, "cat ~/link") == "changed outside\n"
    assert shell_output(seen, "ls -l ~ 2>&1; echo $?").endswith("link -> file\n0\n")


# --- network --------------------------------------------------------------------------------------


def test_host_network_is_blocked_and_rules_cannot_be_changed(pool: Pool) -> None:
    seen = pool.run(pool.spec())
    with listening() as port:
        for address in ("127.0.0.1", *network.addresses_here(), "169.254.169.254"):
            call = f"__import__('socket').create_connection(({address!r}, {port}), 3)"
            assert ask(seen, call) in ("ConnectionRefusedError", "OSError", "TimeoutError"), address
    assert ask(seen, "__import__('socket').socket(17, 3, 768)") in ("OSError", "PermissionError")
    nft = network.tools()
    assert isinstance(nft, network.NetworkTools)
    changed = shell_output(seen, f"unshare -Ur {nft.nft} flush ruleset 2>&1; echo $?")
    assert not changed.endswith("\n0\n") and changed != "0\n"


@contextlib.contextmanager
def listening() -> Iterator[int]:
    server = http.server.HTTPServer(("0.0.0.0", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


# --- limits and shutdown --------------------------------------------------------------------------


def test_memory_is_limited_per_workspace(pool: Pool) -> None:
    if complaint := limits.warning(cgroups.detect(pool.driver.instance)):
        pytest.skip(complaint)
    spec = pool.spec(resources=ResourceRequest(cpu_milli=1000, memory_mib=256))
    seen = pool.run(spec)
    with contextlib.suppress(OSError, ValueError):
        ask(seen, "len(bytearray(b'x') * (512 << 20))")
    ended = pool.wait(lambda: pool.driver.observe(spec.ref), ObservedState.FAILED, ObservedState.STOPPED)
    assert ended.code == "out_of_memory", ended


def test_stopped_app_can_shut_down_gracefully(pool: Pool) -> None:
    code = (
        "import signal, sys, time; from http.server import *\n"
        "def end(*_): open('ended', 'w').close(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "HTTPServer(('127.0.0.1', int(sys.argv[1])), SimpleHTTPRequestHandler).serve_forever()"
    )
    spec = pool.spec("python3", "-c", code, "{port}")
    pool.run(spec)
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref), ObservedState.STOPPED)
    assert (pool.home / "homes" / "analysts" / "ada" / "ended").exists()
    assert pool.pids(spec.ref) == []


# --- pools that require gVisor --------------------------------------------------------------------


def test_machine_without_gvisor_refuses_starts_and_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isolation.probe().bwrap:
        pytest.skip(isolation.probe().reason)
    monkeypatch.setattr(isolation, "_known", {})
    monkeypatch.setattr(gvisor, "PROGRAM", "runsc-that-is-nowhere")
    pool = Pool(tmp_path, sandbox="gvisor")
    inventory = pool.driver.inventory()
    assert Capability.GVISOR not in inventory.capabilities
    assert inventory.nodes[0].isolation is Isolation.SANDBOX
    assert any("“runsc”" in warning for warning in inventory.nodes[0].warnings)
    with pytest.raises(MissingDependency, match="runsc"):
        pool.start(pool.spec())
    assert not any("“runsc”" in text for text in Pool(tmp_path).driver.inventory().nodes[0].warnings)


def test_broken_install_is_distinguished_from_a_working_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of that name that runs commands without gVisor is rejected."""
    bwrap = isolation.probe().bwrap
    if not bwrap:
        pytest.skip(isolation.probe().reason)
    program = tmp_path / "runsc"
    program.write_text("#!/bin/sh\necho running\n")
    program.chmod(0o755)
    monkeypatch.setattr(gvisor, "PROGRAM", str(program))
    path, reason = gvisor.probe(bwrap, isolation.system_folders(), tmp_path)
    assert path == "" and "“runsc”" in reason


def test_inventory_reports_gvisor_isolation(pool: Pool) -> None:
    inventory = pool.driver.inventory()
    assert Capability.GVISOR in inventory.capabilities
    assert inventory.nodes[0].isolation is Isolation.GVISOR
    assert inventory.nodes[0].devices == ()
    placement = Placement((NodePlacement(pool.driver.node_name, devices=(DeviceGrant("GPU-1"),)),))
    with pytest.raises(NoCapacity, match="gVisor"):
        pool.driver.ensure_started(pool.spec(), placement)


def test_pool_can_require_gvisor_but_not_weaken_the_node() -> None:
    asked = PoolConfig("gpu", "local", {"sandbox": "gvisor"})
    assert apply_local_settings(asked, {"BERTH_SANDBOX": "bwrap"}).config["sandbox"] == "gvisor"
    looser = replace(asked, config={"sandbox": "bwrap"})
    assert apply_local_settings(looser, {"BERTH_SANDBOX": "gvisor"}).config["sandbox"] == "gvisor"
    with pytest.raises(InvalidSpec, match="gvisor"):
        LocalDriver(replace(asked, config={"sandbox": "gvisors"})).inventory()
