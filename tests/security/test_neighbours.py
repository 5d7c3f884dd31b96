"""Network attacks from a workspace on neighbours, this machine and the portal.

With the real sandbox, its own network, and the real gateway of a node.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from provisioning.drivers.local import isolation, network, processes
from provisioning.drivers.local.isolation import probe
from provisioning.egress_rules import EgressPolicy, policy_of
from provisioning.endpoints import PORTAL_SOCKET, SOCKET_HEADER, socket_name
from provisioning.errors import InvalidSpec, MissingDependency
from provisioning.node_gateway import Certificates, caddy_config, node_name
from provisioning.types import Observation, ObservedState
from tests.certificates import Authority
from tests.instance import eventually
from tests.node_sockets import plug
from tests.ports import consecutive_ports
from tests.provisioning.local.local_support import Pool, ask, socket_of
from tests.provisioning.local.proc_support import command

NODE = "node-a"
CLOSED = ("ConnectionRefusedError", "OSError", "TimeoutError")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    if probe().network is None:
        pytest.skip(probe().warning)
    made = Pool(tmp_path)
    yield made
    made.close()
    assert network.egress_processes(tmp_path / "berth" / "local") == []


def connects(seen: Observation, address: str, port: int) -> str:
    """Connect from inside. Returns `connected` or the name of the error."""
    call = f"__import__('socket').create_connection(({address!r}, {port}), 3).close() or 'connected'"
    return str(ask(seen, call))


@contextlib.contextmanager
def listening(address: str) -> Iterator[int]:
    """A server on this machine without access control."""
    server = http.server.ThreadingHTTPServer((address, 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# --- without network namespaces -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "package"), [("pasta", "the package “passt”"), ("nft", "the package “nftables”")]
)
def test_shared_network_refuses_several_users_and_warns_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, package: str
) -> None:
    if not probe().bwrap:
        pytest.skip(probe().warning)
    found = shutil.which
    monkeypatch.setattr(
        network.shutil, "which", lambda name, **search: None if name == program else found(name, **search)
    )
    monkeypatch.setattr(isolation, "_known", {})
    pool = Pool(tmp_path)
    try:
        monkeypatch.setenv("BERTH_MULTIUSER", "1")
        with pytest.raises(MissingDependency) as caught:
            pool.start(pool.spec())
        assert caught.value.code == "isolation_required" and package in caught.value.message
        assert pool.driver.list_owned() == ()
        monkeypatch.delenv("BERTH_MULTIUSER")
        (node,) = pool.driver.inventory().nodes
        (warning,) = [each for each in node.warnings if "share this machine's network" in each]
        assert package in warning
        pool.run(pool.spec())
    finally:
        pool.close()


# --- this machine ---------------------------------------------------------------------------------


def test_listeners_on_this_machine_are_unreachable(pool: Pool) -> None:
    """Portal ports, Redis and servers of other users, on loopback and every other address."""
    seen = pool.run(pool.spec())
    with listening("127.0.0.1") as inner, listening("0.0.0.0") as outer:
        for port in (inner, outer):
            for address in ("127.0.0.1", "localhost", *network.addresses_here()):
                assert connects(seen, address, port) in (*CLOSED, "gaierror"), address


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1"]
)
def test_metadata_service_and_private_networks_are_unreachable(pool: Pool, address: str) -> None:
    seen = pool.run(pool.spec())
    assert connects(seen, address, 80) == "ConnectionRefusedError"


def test_rules_cannot_be_changed_from_inside(pool: Pool) -> None:
    seen = pool.run(pool.spec())
    nft = probe().network.nft  # type: ignore[union-attr]
    run = "__import__('subprocess').run({argv!r}, capture_output=True, text=True).returncode"
    for argv in ([nft, "flush", "ruleset"], [nft, "list", "ruleset"], ["ip", "link", "set", "lo", "down"]):
        assert ask(seen, run.format(argv=argv)) not in (0, None), argv
    assert connects(seen, "169.254.169.254", 80) == "ConnectionRefusedError"


def test_egress_none_reaches_no_host(tmp_path: Path) -> None:
    if probe().network is None:
        pytest.skip(probe().warning)
    pool = Pool(tmp_path, egress="none")
    try:
        seen = pool.run(pool.spec())
        folder = pool.driver._dir(seen.ref).path
        assert network.egress_processes(folder) == []
        assert connects(seen, "192.0.2.77", 80) in CLOSED
        assert connects(seen, network.RESOLVER, 53) in CLOSED
    finally:
        pool.close()


CALLS_ITSELF_PASTA = """
(lambda shutil, subprocess, ctypes, os: [
    os.path.exists(os.path.expanduser("~/pasta"))
        or shutil.copy(shutil.which("sleep"), os.path.expanduser("~/pasta")),
    subprocess.Popen([{mark!r}, "600"], executable=os.path.expanduser("~/pasta")).pid,
    subprocess.Popen([{mark!r}, "600"], executable=os.path.expanduser("~/pasta"),
        preexec_fn=lambda: ctypes.CDLL(None).unshare(0x30000000)).pid,
][1:])(*map(__import__, ("shutil", "subprocess", "ctypes", "os")))
"""
"""Two processes with pasta's name and a neighbour's folder, the second in namespaces of its own if it may."""


def test_forged_egress_process_does_not_affect_a_neighbour(
    pool: Pool,
) -> None:
    """If the neighbour's pasta is killed, another is started, and stopping waits only for that one."""
    attacker, neighbour = pool.run(pool.spec(owner="mallory")), pool.run(pool.spec())
    folder = pool.driver._dir(neighbour.ref).path
    ((real, ticks),) = network.egress_processes(folder)
    forged = []
    for mark in (folder / "network.pid", folder / "pasta"):
        forged += ask(attacker, " ".join(CALLS_ITSELF_PASTA.format(mark=str(mark)).split()))
    assert len(forged) == 4
    named = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder) in _reads(path)]
    assert len([path for path in named if _reads(path.with_name("comm")) == "pasta\n"]) == 4
    assert network.egress_processes(folder) == [(real, ticks)]
    assert processes.send((real, ticks), signal.SIGKILL)
    eventually(lambda: not network.egress_processes(folder), limit_s=20, what="it has ended")
    assert not network.complete(folder, policy_of("open", ""))
    pool.driver.warm_up(owner=os.getpid())
    assert network.complete(folder, policy_of("open", ""))
    pool.wait(lambda: pool.driver.ensure_stopped(neighbour.ref), ObservedState.STOPPED)
    assert pool.driver.observe(attacker.ref).state is ObservedState.RUNNING
    assert ask(attacker, "1 + 1") == 2


def _reads(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_app_ports_are_not_open_on_this_machine(pool: Pool) -> None:
    seen = pool.run(pool.spec())
    record = pool.driver._dir(seen.ref).record()
    assert record is not None
    for port in record.ports:
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
            pass


def test_start_waits_for_the_user_namespace_of_the_sandbox() -> None:
    """Its rules could not be loaded before bubblewrap has written the maps of its user namespace."""
    with subprocess.Popen(["unshare", "-U", "-n", "-p", "-f", "sleep", "20"]) as outer:
        try:
            child = eventually(lambda: processes.children_of(outer.pid) or None, limit_s=30, what="a child")[
                0
            ]
            assert processes.is_namespace_init(child)
            assert processes.sandbox_init(outer.pid, timeout_s=0.05) is None
        finally:
            os.kill(child, signal.SIGKILL)
            outer.wait(10)


# --- neighbours ----------------------------------------------------------------------------------

SERVE = (
    "(lambda s: (s.bind(({address!r}, {port})), s.listen(), os.__dict__.setdefault('kept', []).append(s))"
    " and s.getsockname()[1])(__import__('socket').socket())"
)


def test_server_of_a_neighbour_is_unreachable(pool: Pool) -> None:
    victim, attacker = pool.run(pool.spec()), pool.run(pool.spec())
    port = ask(victim, SERVE.format(address="0.0.0.0", port=0))
    assert connects(victim, "127.0.0.1", port) == "connected"
    for address in ("127.0.0.1", *network.addresses_here()):
        assert connects(attacker, address, port) in CLOSED, address


def test_abstract_sockets_are_isolated(pool: Pool) -> None:
    victim, attacker = pool.run(pool.spec()), pool.run(pool.spec())
    name = f"\0berth-{os.getpid()}-{time.monotonic_ns()}"
    make = "(lambda s: (s.bind({name!r}), s.listen(), os.__dict__.setdefault('kept', []).append(s)))"
    ask(victim, f"{make.format(name=name)}(__import__('socket').socket(1)) and 'listening'")
    call = f"__import__('socket').socket(1).connect({name!r}) or 'connected'"
    assert ask(victim, call) == "connected"
    assert ask(attacker, call) == "ConnectionRefusedError"
    with socket.socket(socket.AF_UNIX) as outside, pytest.raises(ConnectionRefusedError):
        outside.connect(name)


def test_binding_every_port_does_not_block_starts(tmp_path: Path) -> None:
    if probe().network is None:
        pytest.skip(probe().warning)
    pool = Pool(tmp_path, port_min=29_900, port_max=29_909)
    try:
        greedy = pool.run(pool.spec())
        ask(greedy, f"[{SERVE.format(address='127.0.0.1', port=0)} for _ in range(20)]")
        for port in range(29_900, 29_910):
            ask(greedy, SERVE.format(address="127.0.0.1", port=port))
        assert pool.run(pool.spec()).state is ObservedState.RUNNING
    finally:
        pool.close()


# --- the gateway of the node ---------------------------------------------------------------------


@dataclass
class Gateway:
    """A real gateway before the workspaces of a pool. `asked` has requests that reached the portal."""

    port: int
    authority: Authority
    asked: list[tuple[str, str, dict[str, str]]]

    def get(
        self, seen: Observation | str, *, certificates: Certificates | None = None, show: bool = True
    ) -> tuple[int, bytes]:
        """Send a request for a workspace, or with any header value. Raises `OSError` if TLS refuses."""
        name = seen if isinstance(seen, str) else socket_name(seen.endpoint)
        shown = certificates or self.authority.front_door()
        context = ssl.create_default_context(cafile=str(self.authority.path))
        if show:
            context.load_cert_chain(str(shown.certificate), str(shown.key))
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        connection = http.client.HTTPConnection("ws.localhost", timeout=10)
        connection.sock = context.wrap_socket(plain, server_hostname=node_name(NODE))
        try:
            headers = {"Host": "ws.localhost", **({SOCKET_HEADER: name} if name else {})}
            connection.request("GET", "/?" + "%22mine%22", headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture
def gateway(pool: Pool, tmp_path: Path) -> Iterator[Gateway]:
    beside = Path(sys.executable).with_name("caddy")
    caddy = str(beside) if beside.exists() else shutil.which("caddy")
    if caddy is None:
        pytest.skip("Caddy is not installed")
    asked: list[tuple[str, str, dict[str, str]]] = []

    class Portal(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.command, self.path, dict(self.headers)))
            self.send_response(204)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - named by the library

        def log_message(self, *_: object) -> None:
            """Suppress request logging."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Portal)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = consecutive_ports(1)
    authority = Authority(tmp_path / "tls")
    config = tmp_path / "gateway.json"
    config.write_text(
        caddy_config(
            listen=f"127.0.0.1:{port}",
            certificates=authority.node(NODE),
            portal_url=f"http://127.0.0.1:{server.server_port}",
            storage=tmp_path / "caddy",
        )
    )
    base = pool.home / "local"
    (base / PORTAL_SOCKET).parent.mkdir(parents=True, exist_ok=True)
    found = Gateway(port, authority, asked)
    with (tmp_path / "caddy.log").open("w") as log:
        process = subprocess.Popen([caddy, "run", "--config", str(config)], cwd=base, stdout=log, stderr=log)
    try:

        def up() -> bool | None:
            with contextlib.suppress(OSError):
                return found.get("") is not None or None
            return None

        eventually(up, limit_s=20, what="the gateway answers")
        yield found
    finally:
        process.terminate()
        process.wait(20)
        server.shutdown()
        server.server_close()


def test_address_of_an_ended_workspace_is_not_reused(pool: Pool, gateway: Gateway) -> None:
    """Its port is free at once; a process that binds it gets no request for the ended workspace."""
    victim, attacker = pool.run(pool.spec()), pool.run(pool.spec())
    record = pool.driver._dir(victim.ref).record()
    assert record is not None
    assert gateway.get(victim) == (200, b'"mine"')
    os.kill(pool.agent_pid(victim.ref), signal.SIGKILL)
    for port in record.ports:
        ask(attacker, SERVE.format(address="0.0.0.0", port=port))
    eventually(lambda: gateway.get(victim)[0] == 502 or None, limit_s=30, what="the dead one refuses")
    with pytest.raises(OSError):
        plug(socket_of(victim))
    assert gateway.get(attacker) == (200, b'"mine"')


def test_request_for_an_earlier_start_does_not_reach_a_later_one(pool: Pool, gateway: Gateway) -> None:
    spec = pool.spec()
    first = pool.run(spec)
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref), ObservedState.STOPPED)
    later = replace(spec, ref=replace(spec.ref, generation=2))
    second = pool.run(later)
    assert gateway.get(second) == (200, b'"mine"')
    assert gateway.get(first)[0] == 502


def test_only_the_front_door_reaches_workspaces(pool: Pool, gateway: Gateway, tmp_path: Path) -> None:
    """Neither without a certificate, nor with one of another authority or of any node."""
    seen = pool.run(pool.spec())
    with pytest.raises(OSError):
        gateway.get(seen, show=False)
    for node in (NODE, "node-b"):
        assert gateway.get(seen, certificates=gateway.authority.node(node)) == (403, b"")
    with pytest.raises(OSError):
        gateway.get(seen, certificates=Authority(tmp_path / "other").front_door())
    assert gateway.get(seen)[0] == 200


NAMES = [
    "", "ws-1", "../../etc/passwd", "{name}/../{name}", "{name} ", "{name}.1", "{upper}", "{name}0",
    "unix//run/docker.sock", "127.0.0.1:22", "{{env.HOME}}", "{name}\t", ".gateway/portal.1",
]  # fmt: skip


def test_other_socket_names_are_refused(pool: Pool, gateway: Gateway, subtests: pytest.Subtests) -> None:
    seen = pool.run(pool.spec())
    good = socket_name(seen.endpoint)
    for name in NAMES:
        given = name.format(name=good, upper=good.upper())
        # White space around a header value is ignored.
        padded = given.strip() == good and given != good
        with subtests.test(name):
            assert gateway.get(given)[0] in ((200, 400, 502) if padded else (502,))


def agent_call(method: str, path: str) -> str:
    """Return an expression that yields the answer of the portal socket from inside."""
    request = f"{method} {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 6.6.6.6\r\nContent-Length: 0\r\n"
    request += "Connection: close\r\n\r\n"
    return (
        "(lambda s: (s.connect('/run/berth/node/portal.sock'), "
        f"s.sendall({request.encode()!r}), s.recv(4096).decode())[2])(__import__('socket').socket(1))"
    )


def test_workspace_reaches_only_agent_paths_of_the_portal(pool: Pool, gateway: Gateway) -> None:
    seen = pool.run(pool.spec())
    assert " 204 " in ask(seen, agent_call("POST", "/agent/v1/heartbeat")).split("\r\n")[0]

    def asked() -> list[tuple[str, str, dict[str, str]]]:
        """Return the requests that passed, without those of the agent with its token."""
        return [each for each in gateway.asked if "Authorization" not in each[2]]

    ((_, path, headers),) = asked()
    assert path == "/agent/v1/heartbeat" and headers.get("X-Forwarded-For", "") != "6.6.6.6"
    for method, path in (
        ("GET", "/agent/v1/heartbeat"),
        ("POST", "/sign-in/"),
        ("POST", "/api/v1/workspaces"),
        ("POST", "/agent/v1/../../sign-in/"),
        ("POST", "/agent/v1/%2e%2e/%2e%2e/sign-in/"),
        ("POST", "//agent/v1/heartbeat/x"),
        ("POST", "/gateway/x/auth"),
    ):
        status = ask(seen, agent_call(method, path)).split("\r\n")[0]
        assert " 404 " in status or " 400 " in status, (method, path, status)
    assert len(asked()) == 1


def test_killing_the_relay_affects_only_its_workspace(pool: Pool, gateway: Gateway) -> None:
    """The relay runs as the workspace user.

    When killed, it is restarted with its original modules. Files with names of Python modules beside the
    agent folder are not imported.
    """
    seen = pool.run(pool.spec())
    for name in ("resource", "relay", "berth_agent"):
        ask(seen, f"open('/run/berth/{name}.py', 'w').write('raise SystemExit')")
    agent = pool.agent_pid(seen.ref)
    children = [pid for pid in pool.pids(seen.ref) if processes.parent_of(pid) == agent]
    (relay,) = [pid for pid in children if b"agent.py" in command(pid)]
    os.kill(relay, signal.SIGKILL)
    eventually(lambda: gateway.get(seen)[0] == 200 or None, limit_s=30, what="the way in comes back")


# --- egress process -------------------------------------------------------------------------------


def test_killed_egress_process_is_restarted_and_one_of_an_ended_workspace_ends(pool: Pool) -> None:
    seen = pool.run(pool.spec())
    folder = pool.driver._dir(seen.ref).path
    ((pid, _),) = network.egress_processes(folder)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not network.egress_processes(folder) or None, limit_s=30, what="it has ended")
    pool.driver.warm_up(owner=os.getpid())
    assert len(network.egress_processes(folder)) == 1
    os.kill(pool.agent_pid(seen.ref), signal.SIGKILL)

    def is_unreachable() -> bool | None:
        pool.driver.observe(seen.ref)
        return not network.egress_processes(folder) or None

    eventually(is_unreachable, limit_s=30, what="nothing leads out of the dead")


def test_egress_rules_have_readable_texts() -> None:
    """Addresses of the machine stay blocked under any rule; `list` blocks the rest."""
    policy = policy_of("list", "10.20.0.0/16, 203.0.113.7")
    text = network.rules(policy, ["198.51.100.9"])
    lines = [line.strip() for line in text.splitlines()]
    assert lines.index("ip daddr 198.51.100.9/32 reject") < lines.index("ip daddr 10.20.0.0/16 accept")
    assert "ip daddr 203.0.113.7/32 accept" in lines
    assert lines.count("reject") == 1 and "accept" not in lines
    assert "accept" in [line.strip() for line in network.rules(EgressPolicy()).splitlines()]


@pytest.mark.parametrize("make", [lambda: policy_of("some", ""), lambda: policy_of("list", "x")])
def test_invalid_policy_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidSpec):
        make()
