"""Workspaces started from spares: equal to plain starts, isolated, and used once."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_support import PROBE, Pool, ask, filters_of, is_root
from proc_support import alive, command, contents, open_descriptors, open_ends

from portal.catalog.initial_catalog import TEMPLATES
from provisioning import preloading
from provisioning.drivers.local import cgroups, isolation, machine, processes, takeover
from provisioning.preloading import Recipe
from provisioning.types import AppSpec, NodePlacement, ObservedState, Placement, WorkspaceSpec

pytestmark = pytest.mark.usefixtures("sandbox")

RECIPE = Recipe(
    name="probe",
    program="bash",
    command=("python3", "-c", PROBE),
    modules=("http.server", "random", "secrets", "ssl", "tempfile", "uuid"),
)
# Facts about a program and its surroundings, as an expression for `ask`.
FACTS = """{
    "environ": dict(os.environ),
    "argv": sys.argv,
    "path": sys.path,
    "cwd": os.getcwd(),
    "ids": [os.getuid(), os.geteuid(), os.getgid(), os.getgroups(), os.getsid(0) == os.getpid()],
    "umask": [os.umask(0o022), os.umask(0o022)],
    "priority": os.getpriority(os.PRIO_PROCESS, 0),
    "limits": open("/proc/self/limits").read(),
    "oom": open("/proc/self/oom_score_adj").read(),
    "status": [line for line in open("/proc/self/status")
               if line.startswith(("Cap", "NoNewPrivs", "Seccomp:", "SigBlk", "SigIgn", "SigCgt"))],
    "mounts": sorted([fields[4], fields[5].replace(",idmapped", ""),
                      fields[6] if fields[6].startswith("master") else ""]
                     for fields in map(str.split, open("/proc/self/mountinfo"))),
    "etc": {name: open("/etc/" + name).read() for name in ("passwd", "group", "hosts")},
    "host": os.uname().nodename,
    "homes": sorted(os.listdir("/home")),
    "run": sorted(os.listdir("/run/berth/ws")),
    "proc": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "inputs": sorted(os.readlink("/proc/self/fd/" + name).partition(":")[0] for name in ("0", "1", "2")),
    "devices": sorted(os.listdir("/dev")),
    "cores": os.cpu_count(),
    "tmp": [__import__("tempfile").gettempdir(), os.listdir("/tmp"), os.path.expanduser("~")],
    "threads": __import__("threading").active_count() < 4,
    "writable": [path for path in ("/usr", sys.prefix, "/run/berth/agent", "/run/berth/agent/agent.py")
                 if os.access(path, os.W_OK)],
}""".replace("\n", " ")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment") / "notebook"
    venv.create(folder, symlinks=True)
    return folder


@pytest.fixture
def pool(environment: Path, make_pool: Callable[..., Pool], monkeypatch: Any) -> Iterator[Pool]:
    monkeypatch.setattr(preloading, "RECIPES", (RECIPE,))
    pool = make_pool(environment=str(environment))
    yield pool
    pool.driver.spare_count = 0
    pool.driver.warm_up(owner=os.getpid())
    assert not spare_pids(pool)


def probe(pool: Pool, **changes: Any) -> WorkspaceSpec:
    app = AppSpec(argv=(*RECIPE.command, "{port}"), start_timeout_s=20, stop_timeout_s=2)
    return pool.spec(**{"app": app, **changes})


def folders(pool: Pool) -> list[Path]:
    return sorted(path.parent for path in (pool.home / "local" / ".spares").glob("*/spare.json"))


def spare_pids(pool: Pool) -> set[int]:
    """Return the processes of all spares that are still unused."""
    found = set()
    for folder in folders(pool):
        found |= {process.pid for process in pool.driver.spares.processes(folder.name)}
    return found


def until(condition: Callable[[], Any], *, what: str) -> Any:
    deadline = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def ready_spares(pool: Pool, number: int = 1, *, owner: int = 0) -> list[Path]:
    pool.driver.spare_count = number
    pool.driver.warm_up(owner=owner or os.getpid())

    def ready() -> list[Path] | None:
        done = [path for path in folders(pool) if "unclaimed" in _text(path / "run" / "state.json")]
        return done if len(done) == number else None

    found: list[Path] = until(ready, what="no spare became ready")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def in_spare(pool: Pool, spec: WorkspaceSpec) -> bool:
    return (pool.home / "local" / spec.ref.external_name / "spare.json").exists()


def pids_of(pool: Pool, spec: WorkspaceSpec) -> list[int]:
    folder = pool.driver._dir(spec.ref)
    found = processes.scan(pool.driver.instance, folder.name, spares=folder.claimed())
    return [one.pid for one in found]


# --- equal to a plain start -----------------------------------------------------------------------


def test_workspace_from_a_spare_equals_a_plain_start(pool: Pool) -> None:
    plain = probe(pool)
    first = ask(pool.run(plain), FACTS)
    assert not in_spare(pool, plain)
    ready_spares(pool)
    spec = probe(pool)
    second = ask(pool.run(spec), FACTS)
    assert in_spare(pool, spec) and not folders(pool)
    for facts, one in ((first, plain), (second, spec)):
        facts["argv"].pop()  # the port
        assert facts["environ"].pop("BERTH_WORKSPACE") == one.ref.external_name
    # The programs that prepare spares are mounted as well, read-only.
    apps = [entry for entry in second["mounts"] if entry not in first["mounts"]]
    assert [entry[0] for entry in apps] == ["/run/berth/apps"] and "ro" in apps[0][1].split(",")
    second["mounts"] = first["mounts"]
    assert second["path"].pop() == "/run/berth/apps"
    assert second == first


def test_files_are_in_the_home_and_the_workspace_ends_normally(pool: Pool) -> None:
    ready_spares(pool)
    spec = probe(pool)
    seen = pool.run(spec)
    assert ask(seen, "open(os.environ['HOME'] + '/kept', 'w').write('x')") == 1
    assert (pool.home / "homes" / "analysts" / "ada" / "kept").read_text() == "x"
    assert [one.ref for one in pool.driver.list_owned()] == [spec.ref]
    assert pool.driver.ensure_started(spec, here(pool)).state is ObservedState.RUNNING
    pids = pids_of(pool, spec)
    assert len(pids) >= 4
    pool.wait(lambda: pool.driver.ensure_stopped(spec.ref), ObservedState.STOPPED)
    assert pids_of(pool, spec) == [] and not any(alive(pid) for pid in pids)
    # The next generation uses another spare and its folder.
    ready_spares(pool)
    again = replace(spec, ref=replace(spec.ref, generation=2))
    assert ask(pool.run(again), "open(os.environ['HOME'] + '/kept').read()") == "x"
    assert in_spare(pool, again)


def test_app_killed_in_a_spare_is_observed(pool: Pool) -> None:
    ready_spares(pool)
    spec = probe(pool)
    ask(pool.run(spec), "None")
    (app,) = [
        pid for pid in pids_of(pool, spec) if b"app_host" in command(pid) and b"agent" not in command(pid)
    ]
    os.kill(app, signal.SIGKILL)
    seen = pool.wait(lambda: pool.driver.observe(spec.ref), ObservedState.FAILED)
    assert (seen.code, seen.exit_code) == ("app_exited", 137)


def test_app_without_direct_listener_gets_a_relay(pool: Pool, monkeypatch: Any) -> None:
    monkeypatch.setattr(preloading, "RECIPES", (replace(RECIPE, direct=True),))
    ready_spares(pool)
    seen = pool.run(spec := probe(pool))
    assert pool.driver._dir(spec.ref).claimed()
    assert ask(seen, "6 * 7") == 42


def test_resource_limits_apply_in_a_spare(pool: Pool) -> None:
    host = cgroups.detect(pool.driver.instance)
    if not host.version:
        pytest.skip(f"no control groups here: {host.reason}")
    ready_spares(pool)
    spec = probe(pool)
    seen = pool.run(spec)
    record = pool.driver._dir(spec.ref).record()
    groups = [Path(path) for path in record.cgroups]
    for group in groups:
        assert set(pids_of(pool, spec)) == cgroups.pids([group])
    limits = {
        name: _text(group / name).strip()
        for group in groups
        for name in LIMIT_FILES
        if (group / name).exists()
    }
    assert set(limits.values()) <= {str(256 << 20), "50000", "50000 100000"} and len(limits) >= 2
    with pytest.raises((OSError, ValueError)):  # missing or empty answer
        ask(seen, "len(bytearray(os.urandom(1 << 20) * 400))")
    seen = pool.wait(lambda: pool.driver.observe(spec.ref), ObservedState.FAILED)
    assert seen.code == "out_of_memory"
    pool.wait(lambda: pool.driver.ensure_deleted(spec.ref), ObservedState.ABSENT)
    assert not any(group.exists() for group in groups)


LIMIT_FILES = ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max")


# --- isolation ------------------------------------------------------------------------------------


def test_spare_holds_no_user_data(pool: Pool) -> None:
    secret = probe(pool)
    pool.run(secret)
    (folder,) = ready_spares(pool)
    for pid in spare_pids(pool):
        root = Path(f"/proc/{pid}/root")
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"token" not in environ.lower() and not re.search(rb"\bada\b", environ)
        if "/proc/1/" not in str(root) and b"bwrap" not in command(pid):
            assert not (root / "home").exists()
            assert not list((root / "run" / "berth" / "ws").glob("agent.json"))
            assert contents(pid, secret.app_token, secret.agent.token) == []
    assert {path.name for path in (folder / "run").iterdir()} == {"state.json"}


def test_spare_exposes_nothing_of_another_tenant(pool: Pool) -> None:
    ready_spares(pool, 2)
    ada, ben = probe(pool), probe(pool, owner="ben", team="others", name="Of Ben")
    pool.run(ada)
    of_ada = pool.home / "homes" / "analysts" / "ada"
    (of_ada / "secret.txt").write_text("the-secret-of-ada")
    seen = pool.run(ben)
    assert in_spare(pool, ada) and in_spare(pool, ben)
    assert ask(seen, "os.listdir('/home')") == ["ben"]
    environs = (
        "b''.join(open('/proc/%s/environ' % p, 'rb').read() for p in os.listdir('/proc') if p.isdigit())"
    )
    words = (ada.app_token, ada.agent.token, ada.ref.external_name, "analysts", "the-secret-of-ada")
    # All memory of each process of ben, agent and app.
    for pid in pids_of(pool, ben):
        assert contents(pid, *words) == [], command(pid)
    for word in words:
        assert ask(seen, f"{word.encode()!r} in {environs}") is False
    assert ask(seen, f"os.path.exists({str(of_ada)!r})") is False
    assert ask(seen, f"os.path.exists({str(pool.home)!r})") is False
    # No process of one side holds a pipe or socket of the other or of this test.
    mine, theirs = ({item for pid in pids_of(pool, one) for item in open_ends(pid)} for one in (ada, ben))
    assert mine and theirs
    assert not mine & theirs
    assert not (mine | theirs) & open_ends(os.getpid())


def test_seccomp_filter_applies_before_and_after_takeover(pool: Pool) -> None:
    ready_spares(pool)
    outside = pool.driver.spares._list_spares()[0][0].launched().pid
    waiting = {
        pid: [
            line.split()[1] for line in _text(Path(f"/proc/{pid}/status")).splitlines() if "Seccomp:" in line
        ]
        for pid in spare_pids(pool)
        if pid != outside
    }
    assert len(waiting) >= 3 and list(waiting.values()) == [["2"]] * len(waiting)
    spec = probe(pool)
    pool.run(spec)
    assert in_spare(pool, spec)
    found = filters_of(pool, spec)
    assert set(waiting) <= set(found) and set(found.values()) == {"2"}


def test_spare_with_another_filter_is_ended(pool: Pool, monkeypatch: Any) -> None:
    """After an update of Berth, or if the filter failed a minute ago."""
    old = ready_spares(pool)
    real = isolation.probe()
    unfiltered = replace(real, seccomp="", seccomp_reason="No filter.")
    monkeypatch.setattr(machine, "probe", lambda _base: unfiltered)
    spec = probe(pool)
    pool.run(spec)
    assert not in_spare(pool, spec) and folders(pool) == old
    assert ready_spares(pool) != old


def test_random_values_differ_between_spares(pool: Pool) -> None:
    ready_spares(pool, 2)
    draw = """[__import__("random").random(), __import__("random").getrandbits(64),
        __import__("secrets").token_hex(8), str(__import__("uuid").uuid4()), os.urandom(8).hex(),
        __import__("ssl").RAND_bytes(8).hex(), hash("the same text"), id(os),
        next(__import__("tempfile")._get_candidate_names()),
        [line[:24] for line in open("/proc/self/maps") if "[stack]" in line]]"""
    drawn = []
    for owner in ("ada", "ben"):
        spec = probe(pool, owner=owner)
        drawn.append(ask(pool.run(spec), draw.replace("\n", " ")))
        assert in_spare(pool, spec)
    assert [a for a, b in zip(*drawn, strict=True) if a == b] == []


def test_app_holds_no_descriptor_of_its_starter(pool: Pool) -> None:
    ready_spares(pool)
    spec = probe(pool)
    seen = pool.run(spec)
    for pid in pids_of(pool, spec):
        if b"app_host" not in command(pid):
            continue
        kinds = open_descriptors(pid)
        assert not [kind for kind in kinds if "pidfd" in kind or "namespace" in kind or "nsfs" in kind]
        assert not [
            kind
            for kind in kinds
            if kind.startswith("/")
            and kind not in ("/dev/null", "/dev/urandom")
            and not kind.endswith(("/alive.lock", "/launch.log"))
            and not kind.startswith(sys.base_prefix)  # a module being imported
        ]
    # Only the app listens, and the sandbox has no rights over its namespaces.
    assert ask(seen, "open('/proc/self/setgroups').read().strip()") in ("deny", "allow")
    code = "__import__('ctypes').CDLL(None).mount(b'none', b'/home', b'tmpfs', 0, None)"
    assert ask(seen, code) == -1
    assert ask(seen, "__import__('ctypes').CDLL(None).unshare(0x10000000)") == -1
    assert ask(seen, "__import__('ctypes').CDLL(None).sethostname(b'x', 1)") == -1


# --- used once, never left behind -----------------------------------------------------------------


def test_spare_is_used_by_only_one_of_concurrent_starts(pool: Pool) -> None:
    ready_spares(pool)
    specs = [probe(pool, owner=f"user{number}") for number in range(4)]
    pool.started += [spec.ref for spec in specs]
    together = threading.Barrier(len(specs))
    failed: list[BaseException] = []

    def start(spec: WorkspaceSpec) -> None:
        together.wait()
        try:
            pool.driver.ensure_started(spec, here(pool))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=start, args=(spec,)) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for spec in specs:
        seen = pool.wait(lambda spec=spec: pool.driver.observe(spec.ref), ObservedState.RUNNING)
        assert ask(seen, "os.listdir('/home')") == [spec.owner]
    assert [in_spare(pool, spec) for spec in specs].count(True) == 1


MOMENTS = ("become_workspace", "_wait_for", "markers_of", "send_configuration")


@pytest.mark.parametrize("moment", MOMENTS)
def test_worker_killed_during_takeover_leaves_no_partial_state(pool: Pool, moment: str) -> None:
    ready_spares(pool)
    spec = probe(pool)
    pool.started.append(spec.ref)

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def attempt() -> None:
        setattr(takeover, moment, die)
        pool.driver.ensure_started(spec, here(pool))

    spare = folders(pool)[0].name
    child = multiprocessing.get_context("fork").Process(target=attempt)
    child.start()
    child.join(20)
    assert child.exitcode == -signal.SIGKILL
    has_ended = lambda: not pool.driver.spares.processes(spare)  # noqa: E731
    until(has_ended, what="the spare of a dead worker lives")
    # The repeated command starts it once, with the requested generation.
    seen = pool.wait(lambda: start_again(pool, spec), ObservedState.RUNNING)
    assert seen.ref == spec.ref and not in_spare(pool, spec)
    assert ask(seen, "os.listdir('/home')") == ["ada"]
    pool.driver.spare_count = 0
    pool.driver.warm_up(owner=os.getpid())
    assert folders(pool) == []


def start_again(pool: Pool, spec: WorkspaceSpec) -> Any:
    return pool.driver.ensure_started(spec, here(pool))


def test_spares_end_with_their_worker(pool: Pool) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        ready_spares(pool, owner=worker.pid)
        pids = spare_pids(pool)
        assert pids
        worker.kill()
    until(lambda: not any(alive(pid) for pid in pids), what="a spare outlives its worker")
    # The next worker removes them and makes its own.
    spec = probe(pool)
    pool.run(spec)
    assert not in_spare(pool, spec)
    old = folders(pool)
    assert ready_spares(pool) != old


def test_workspace_from_a_spare_outlives_its_worker(pool: Pool) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        ready_spares(pool, owner=worker.pid)
        spec = probe(pool)
        seen = pool.run(spec)
        assert in_spare(pool, spec)
        worker.kill()
    assert ask(seen, "1 + 1") == 2
    assert pool.driver.observe(spec.ref).state is ObservedState.RUNNING


def test_a_spare_of_another_environment_is_replaced(pool: Pool, environment: Path) -> None:
    (old,) = ready_spares(pool)
    (packages,) = environment.glob("lib/python3.*/site-packages")
    (packages / "installed-since.pth").write_text("")
    spec = probe(pool)
    pool.run(spec)
    assert not in_spare(pool, spec)
    (new,) = ready_spares(pool)
    assert new != old and not old.exists()


@pytest.mark.parametrize("variable", ["PATH", "PYTHONPATH", "LD_PRELOAD", "LC_ALL", "TZ"])
def test_settings_read_at_start_up_need_a_plain_start(pool: Pool, variable: str) -> None:
    ready_spares(pool)
    app = replace(probe(pool).app, env={variable: "/usr/bin:/bin" if variable == "PATH" else ""})
    spec = probe(pool, app=app)
    pool.start(spec)
    assert not in_spare(pool, spec) and len(folders(pool)) == 1


def test_another_command_does_not_use_a_spare(pool: Pool) -> None:
    ready_spares(pool)
    spec = pool.spec("python3", "-c", PROBE + "#", "{port}")
    pool.run(spec)
    assert not in_spare(pool, spec) and len(folders(pool)) == 1


def test_spare_failing_to_mount_the_home_is_ended_and_start_continues(
    pool: Pool, tmp_path: Path, monkeypatch: Any
) -> None:
    (folder,) = ready_spares(pool)
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(1)")
    monkeypatch.setattr(takeover, "ATTACH", broken)
    spec = probe(pool)
    seen = pool.run(spec)
    assert not in_spare(pool, spec) and not folder.exists()
    assert not pool.driver.spares.processes(folder.name)
    assert ask(seen, "os.listdir('/home')") == ["ada"]


def test_surplus_spares_are_ended(pool: Pool) -> None:
    ready_spares(pool, 2)
    kept = ready_spares(pool, 1)
    assert len(kept) == 1 and len(folders(pool)) == 1
    again = ready_spares(pool, 1)
    assert again == kept


def test_devices_are_mounted_in_a_spare_as_in_a_plain_start(pool: Pool, monkeypatch: Any) -> None:
    if not is_root():
        pytest.skip("needs device nodes that this user may open")
    found = takeover.mounts(Path("/home/x"), "/home/ada", [_Device(("/dev/zero", "/dev/full"))])  # type: ignore[list-item]
    monkeypatch.setattr(
        takeover,
        "mounts",
        lambda home, inside, _devices, owners: [
            {**found[0], "source": str(home), "target": inside, "owners": owners},
            *(mount for mount in found[1:] if mount["folder"]),
            {**found[-1], "source": "/dev/zero", "target": "/dev/berth-zero"},
        ],
    )
    ready_spares(pool)
    spec = probe(pool)
    seen = pool.run(spec)
    assert in_spare(pool, spec)
    assert ask(seen, "open('/dev/berth-zero', 'rb').read(4).hex()") == "00000000"
    assert ask(seen, "open('/sys/devices/berth-was-here', 'w')") in ("OSError", "PermissionError")
    options = ask(
        seen, "[f.split()[5] for f in open('/proc/self/mountinfo') if f.split()[4] == '/sys/devices']"
    )
    assert options and {"ro", "nosuid", "nodev"} <= set(options[0].split(","))


class _Device:
    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes


def here(pool: Pool) -> Placement:
    return Placement((NodePlacement(pool.driver.node_name),))


def test_spare_recipe_matches_the_catalog_template() -> None:
    (template,) = [one for one in TEMPLATES if one["slug"] == "jupyterlab"]
    app = AppSpec(argv=tuple(template["argv"]), env=template["env"])
    assert preloading.recipe_for(app) is preloading.JUPYTERLAB
    json.dumps(preloading.JUPYTERLAB.as_json())
