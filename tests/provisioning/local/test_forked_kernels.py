"""Kernels of a preloaded JupyterLab: forked, otherwise like those that Jupyter starts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jupyter_support import LIMIT_S, Jupyter, result, send, until
from local_support import Pool, filters_of
from proc_support import command

from provisioning.drivers.local import processes
from provisioning.types import ObservedState
from tests.instance import eventually
from tests.node_sockets import run_in_network
from tests.suite.choice import sample

pytestmark = [pytest.mark.apart, pytest.mark.engine, pytest.mark.usefixtures("sandbox")]


@pytest.fixture
def pool(notebook_pool: Pool) -> Pool:
    return notebook_pool


@pytest.fixture
def jupyter(pool: Pool) -> Jupyter:
    return Jupyter(pool, prepared=True)


COMMAND = "open('/proc/self/cmdline').read()"
FACTS = """{
    "environ": {k: v for k, v in os.environ.items() if k not in VARYING},
    "cwd": os.getcwd(), "path": sys.path, "name": __name__, "umask": [os.umask(0o022), os.umask(0o022)],
    "leads": os.getsid(0) == os.getpid() == os.getpgid(0),
    "status": [line for line in open("/proc/self/status") if line.startswith(("Sig", "NoNew", "Cap"))],
    "oom": open("/proc/self/oom_score_adj").read(), "limits": open("/proc/self/limits").read(),
    "modules": sorted({name.partition(".")[0] for name in sys.modules} - LAZY),
    "stdin": os.readlink("/proc/self/fd/0").partition(":")[0],
}""".replace("\n", " ")


def facts(jupyter: Jupyter, kernel: str, lazy: set[str]) -> Any:
    varying = {"BERTH_WORKSPACE", "JPY_PARENT_PID", "JPY_SESSION_NAME", "JUPYTER_TOKEN"}
    return jupyter.value(kernel, FACTS.replace("VARYING", repr(varying)).replace("LAZY", repr(lazy)))


@pytest.mark.thorough("`make test` has restart, interrupt and shutdown")
def test_forked_kernel_equals_a_kernel_started_by_jupyter(jupyter: Jupyter, pool: Pool) -> None:
    forked = jupyter.kernel()
    plain_server = Jupyter(pool, prepared=False)
    plain = plain_server.kernel()
    assert "app_host" in jupyter.value(forked, COMMAND)
    assert "ipykernel_launcher" in plain_server.value(plain, COMMAND)
    # Modules preloaded by the kernel server that kernels otherwise import on first use.
    lazy = {"forked_kernels", "gc", "runpy", "_posixsubprocess"}
    ours, theirs = facts(jupyter, forked, lazy), facts(plain_server, plain, lazy)
    assert {"jupyter_server", "jupyterlab", "rfc3987_syntax", "app_host"}.isdisjoint(ours["modules"])
    assert ours.pop("stdin") == "/dev/null" and theirs.pop("stdin") == "pipe"  # both have ended
    assert ours == theirs
    assert jupyter.value(forked, "os.environ['JPY_PARENT_PID'] == str(os.getppid())") is True


@pytest.mark.parametrize("prepared", sample([True, False], 2, "`make test` has prepared notebooks"))
def test_seccomp_filter_applies_to_kernels_and_terminals(pool: Pool, prepared: bool) -> None:
    jupyter = Jupyter(pool, prepared=prepared)
    status = "[line.split()[1] for line in open('/proc/self/status') if line.startswith('Seccomp:')]"
    assert jupyter.value(jupyter.kernel(), status) == ["2"]
    jupyter.call("POST", "/api/terminals", {})

    def terminals() -> list[int]:
        return [pid for pid in filters_of(pool, jupyter.spec) if command(pid).startswith(b"/bin/bash\0")]

    until(terminals, what="no terminal began")
    found = filters_of(pool, jupyter.spec)
    assert set(terminals()) <= set(found) and set(found.values()) == {"2"}


def test_two_kernels_draw_different_numbers(jupyter: Jupyter) -> None:
    draw = """[__import__("random").random(), __import__("secrets").token_hex(8),
        str(__import__("uuid").uuid4()), str(__import__("uuid").uuid1()), os.urandom(8).hex(),
        __import__("ssl").RAND_bytes(8).hex(),
        next(__import__("tempfile")._get_candidate_names())]""".replace("\n", " ")
    first, second = jupyter.kernel(), jupyter.kernel()
    pairs = zip(jupyter.value(first, draw), jupyter.value(second, draw), strict=True)
    assert [a for a, b in pairs if a == b] == []


def test_kernels_do_not_inherit_descriptors_of_another(jupyter: Jupyter) -> None:
    ends = """[t for t in (os.readlink("/proc/self/fd/" + n) for n in os.listdir("/proc/self/fd")
        if os.path.islink("/proc/self/fd/" + n)) if t.startswith(("socket:", "pipe:"))]"""
    kernels = [jupyter.kernel(), jupyter.kernel()]
    # Kernels share the output of the app, as in any Jupyter.
    server = jupyter.value(kernels[0], "os.getppid()")
    output = jupyter.value(kernels[0], f"os.readlink('/proc/{server}/fd/1')")
    held = [set(jupyter.value(kernel, ends.replace("\n", " "))) for kernel in kernels]
    assert held[0] & held[1] <= {output}


def test_kernel_can_be_restarted_interrupted_and_shut_down(jupyter: Jupyter) -> None:
    kernel = jupyter.kernel()
    before = jupyter.value(kernel, "os.getpid()")
    assert jupyter.run(kernel, "kept = 1; print(kept)") == "1\n"
    with jupyter.channel(kernel) as channel:
        request = send(channel, "print('begun', flush=True)\nwhile True: pass")
        while json.loads(channel.recv(timeout=LIMIT_S))["msg_type"] != "stream":
            continue
        jupyter.call("POST", f"/api/kernels/{kernel}/interrupt")
        assert result(channel, request) == "KeyboardInterrupt"
    assert jupyter.run(kernel, "print(kept)") == "1\n"
    jupyter.call("POST", f"/api/kernels/{kernel}/restart")
    assert jupyter.run(kernel, "print(kept)") == "NameError"
    after = jupyter.value(kernel, "os.getpid()")
    assert after != before and "app_host" in jupyter.value(kernel, COMMAND)
    other = jupyter.kernel()
    assert jupyter.value(other, f"os.path.exists('/proc/{before}')") is False
    jupyter.call("DELETE", f"/api/kernels/{kernel}")
    until(
        lambda: not jupyter.value(other, f"os.path.exists('/proc/{after}')"),
        what="a kernel that was shut down",
    )


@pytest.mark.thorough("`make test` has restart, interrupt and shutdown")
def test_kernel_accepts_connections_when_jupyter_lists_it(jupyter: Jupyter) -> None:
    """A retrying client may miss the first message of the kernel, and Jupyter retries only later."""
    folder = jupyter.pool.driver._dir(jupyter.spec.ref)
    first = processes.sandbox_init(folder.launched().pid)
    kernel = jupyter.kernel()
    info = json.loads(Path(f"/proc/{first}/root/tmp/jupyter/kernel-{kernel}.json").read_text())
    ports = [info[f"{channel}_port"] for channel in ("shell", "iopub", "control", "stdin", "hb")]
    connect_all = (
        f"import socket\nfor port in {ports}: socket.create_connection(('127.0.0.1', port), timeout=60)"
    )
    run_in_network(first, connect_all)


@pytest.mark.thorough("waits for Jupyter's own restart")
def test_dead_kernel_is_restarted(jupyter: Jupyter) -> None:
    kernel = jupyter.kernel()
    before = jupyter.value(kernel, "os.getpid()")
    with jupyter.channel(kernel) as channel:
        send(channel, "import os; os.kill(os.getpid(), 9)")
        state = ""
        while state != "restarting":
            state = json.loads(channel.recv(timeout=LIMIT_S))["content"].get("execution_state")

    def answered() -> str | None:
        # Messages sent during a restart, and output, may be lost: Jupyter subscribes again without notice.
        with jupyter.channel(kernel) as channel:
            request = send(channel, "import os; print(os.getpid())")
            try:
                return result(channel, request, limit_s=10) or None
            except TimeoutError:
                return None

    assert int(eventually(answered, limit_s=LIMIT_S, what="the kernel runs again")) != before


@pytest.mark.thorough("`make test` has restart, interrupt and shutdown")
def test_kernels_end_with_the_kernel_server_and_new_ones_start_without_it(jupyter: Jupyter) -> None:
    kernel = jupyter.kernel()
    parent = jupyter.value(kernel, "os.getppid()")
    assert jupyter.run(kernel, f"import os; os.kill({parent}, 9); print('done')") == "done\n"
    other = jupyter.kernel()
    assert "ipykernel_launcher" in jupyter.value(other, COMMAND)


@pytest.mark.thorough("`make test` has restart, interrupt and shutdown")
def test_forked_kernel_gets_cwd_and_environment_of_jupyter(jupyter: Jupyter) -> None:
    home = jupyter.pool.home / "homes" / "analysts" / "ada"
    (home / "deep").mkdir(mode=0o700)
    os.chown(home / "deep", home.stat().st_uid, home.stat().st_gid)
    spec = home / ".local" / "share" / "jupyter" / "kernels" / "mine"
    spec.mkdir(parents=True)
    argv = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    for name, env in (("mine", {"FLAVOR": "blue"}), ("other", {"PYTHONDONTWRITEBYTECODE": "1"})):
        (spec.parent / name).mkdir(exist_ok=True)
        (spec.parent / name / "kernel.json").write_text(
            json.dumps({"argv": argv, "display_name": name, "language": "python", "env": env})
        )
    kernel = jupyter.kernel("mine", "deep")
    assert jupyter.value(kernel, "[os.getcwd(), os.environ['FLAVOR'], 'FLAVOR']") == [
        "/home/ada/deep",
        "blue",
        "FLAVOR",
    ]
    assert "app_host" in jupyter.value(kernel, COMMAND)
    # A variable read at interpreter start needs a new interpreter.
    other = jupyter.kernel("other")
    assert "ipykernel_launcher" in jupyter.value(other, COMMAND)
    assert jupyter.value(other, "sys.dont_write_bytecode") is True


@pytest.mark.thorough("`make test` has restart, interrupt and shutdown")
def test_kernel_server_is_not_activity_but_a_forked_kernel_is(jupyter: Jupyter) -> None:
    before = jupyter.activity()
    assert before["kernels"] == {"count": 0, "last_activity": None, "busy": 0}
    kernel = jupyter.kernel()
    assert jupyter.run(kernel, "print(1)") == "1\n"
    assert jupyter.activity()["kernels"]["count"] == 1


@pytest.mark.thorough("`make test` has restart, interrupt and shutdown")
def test_kernels_of_a_workspace_count_as_its_own_and_end_with_it(jupyter: Jupyter) -> None:
    kernel = jupyter.kernel()
    jupyter.run(kernel, "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    folder = jupyter.pool.driver._dir(jupyter.spec.ref)
    pids = [
        one.pid for one in processes.scan(jupyter.pool.driver.instance, folder.name, spares=folder.claimed())
    ]
    assert len(pids) >= 7
    driver, ref = jupyter.pool.driver, jupyter.spec.ref
    jupyter.pool.wait(lambda: driver.ensure_stopped(ref), ObservedState.STOPPED, timeout_s=LIMIT_S)
    assert [pid for pid in pids if processes.start_ticks(pid) is not None] == []
