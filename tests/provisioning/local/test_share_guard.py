"""GPU shares on this machine: holders, attribution of processes, and enforcement.

Memory reported by the driver is fake; workspaces, sandboxes and processes are real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from local_support import Pool, ask

from provisioning import messages
from provisioning.drivers.local import gpus, processes, share_guard, state
from provisioning.drivers.local.share_guard import ShareHolder, Shares
from provisioning.errors import NoCapacity
from provisioning.gpu.samples import ProcessUse, Sample
from provisioning.gpu.shares import Rank
from provisioning.node.guarding import Guard, ShareNoteSender
from provisioning.share_messages import PROVIDES_SHARES, ShareNote, ShareNotes, ShareStep
from provisioning.types import (
    AcceleratorRequest,
    DeviceGrant,
    DeviceInfo,
    NodePlacement,
    Observation,
    ObservedState,
    Placement,
    ResourceRequest,
    WorkspaceSpec,
)
from tests.gpu.fake_nvml import FakeLibrary, h100_mig, h200, installed
from tests.suite.choice import quick_of

GPU = "GPU-4d8f3f33-0000-0000-0000-000000000000"
SIZE = 80_000
# Ignores SIGTERM, like a busy kernel.
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"


def sample(
    uses: Mapping[int, int | None], *, used_mib: int | None = None, at_s: float | None = None
) -> Sample:
    found = tuple(ProcessUse(pid, None, memory) for pid, memory in uses.items())
    total = sum(filter(None, uses.values())) if used_mib is None else used_mib
    return Sample(time.time() if at_s is None else at_s, memory_used_mib=total, processes=found)


@pytest.fixture
def pool(make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A node with one shareable GPU of 80,000 MiB."""
    found = make_pool()
    scan = gpus.GpuScan((DeviceInfo(GPU, 0, "NVIDIA Test", SIZE, nodes=()),))
    monkeypatch.setattr(gpus, "scan", lambda: scan)
    return found


def half(pool: Pool, *, memory_mib: int = 0, milli: int = 500) -> tuple[WorkspaceSpec, Observation]:
    """Run a workspace with a share of the GPU."""
    request = ResourceRequest(500, 256, accelerators=AcceleratorRequest(count=1, share_milli=milli))
    spec = pool.spec(resources=request)
    pool.started.append(spec.ref)
    here = NodePlacement(pool.driver.node_name, (DeviceGrant(GPU, milli, memory_mib),))
    pool.driver.ensure_started(spec, Placement((here,)))
    return spec, pool.wait(lambda: pool.driver.observe(spec.ref), ObservedState.RUNNING)


def child_of(pool: Pool, spec: WorkspaceSpec, seen: Observation, program: str = STUBBORN) -> int:
    """Start a child of the app. Returns its PID on the host; a stubborn one ignores SIGTERM."""
    before = set(pool.pids(spec.ref)) | {0}
    code = f"__import__('subprocess').Popen([sys.executable, '-c', {program!r}]).pid"
    inside = ask(seen, code)
    owned = processes.scan(pool.driver.instance, spec.ref.external_name)
    (found,) = [
        each.pid for each in owned if each.pid not in before and processes.numbers_of(each.pid)[-1] == inside
    ]
    deadline = time.monotonic() + 20
    while program is STUBBORN and not ignores_term(found):
        assert time.monotonic() < deadline, "it has not begun"
        time.sleep(0.01)
    return found


def ignores_term(pid: int) -> bool:
    return bool(int(processes._status(pid, "SigIgn")[0], 16) >> (signal.SIGTERM - 1) & 1)


def alive(pid: int) -> bool:
    return processes.start_ticks(pid) is not None


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline, "SIGKILL came to nothing"
        time.sleep(0.01)


# --- holders --------------------------------------------------------------------------------------


def test_share_holders_are_read_from_disk_after_the_worker_was_killed(pool: Pool) -> None:
    spec, _ = half(pool)
    half(pool, milli=1000)
    asked, _ = half(pool, memory_mib=10_000, milli=200)
    # Only the files on disk.
    shares = Shares(pool.driver.base, pool.driver.instance)
    found = {holder.workspace_id: holder.share for holder in shares.holders()}
    assert found == {
        spec.ref.workspace_id: state.GpuShare(GPU, 40_000, SIZE),
        asked.ref.workspace_id: state.GpuShare(GPU, 10_000, SIZE),
    }, "a whole GPU is no part"
    pool.driver.ensure_stopped(spec.ref)
    assert [holder.workspace_id for holder in shares.holders()] == [asked.ref.workspace_id]


def test_process_is_attributed_to_its_workspace(pool: Pool, sandbox: None) -> None:
    spec, seen = half(pool)
    other, _ = half(pool)
    work, agent = child_of(pool, spec, seen), pool.agent_pid(spec.ref)
    app = processes.parent_of(work)
    shares = pool.driver.shares()
    holders = shares.holders()
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as stranger:
        found = shares.usage_by_holder(
            GPU, holders, sample({work: 7, app: 5, agent: 3, stranger.pid: 60_000, 1: 2})
        )
        stranger.kill()
    mine = found[spec.ref.external_name]
    assert {process.pid: (process.memory_mib, process.rank) for process in mine.processes} == {
        work: (7, Rank.WORK), app: (5, Rank.APP), agent: (3, Rank.AGENT),
    }  # fmt: skip
    assert mine.part_mib == 40_000 and found[other.ref.external_name].processes == ()


def test_markers_set_by_users_are_ignored(pool: Pool, sandbox: None) -> None:
    """Otherwise a process could have the work of a neighbour ended."""
    spec, seen = half(pool)
    victim, _ = half(pool)
    program = (
        "import os, sys; os.execve(sys.executable, ['x', '-c', 'import time; time.sleep(600)'], "
        f"dict(BERTH_INSTANCE={pool.driver.instance!r}, BERTH_GENERATION='1', BERTH_ROLE='agent', "
        f"BERTH_WORKSPACE={victim.ref.external_name!r}))"
    )
    liar = child_of(pool, spec, seen, program)
    deadline = time.monotonic() + 20
    while victim.ref.external_name.encode() not in Path(f"/proc/{liar}/environ").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shares = pool.driver.shares()
    found = shares.usage_by_holder(GPU, shares.holders(), sample({liar: 70_000}))
    assert found[victim.ref.external_name].processes == ()
    assert [process.pid for process in found[spec.ref.external_name].processes] == [liar]


def test_process_attribution_is_cached(pool: Pool, sandbox: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scanning all processes each second for each device would cost a core."""
    spec, seen = half(pool)
    first, second = child_of(pool, spec, seen), child_of(pool, spec, seen)
    shares, looks, scan = pool.driver.shares(), [], processes.scan
    monkeypatch.setattr(processes, "scan", lambda *given, **more: looks.append(1) or scan(*given, **more))
    for _ in range(5):
        holders = shares.holders()
        its = shares.usage_by_holder(GPU, holders, sample({first: 1, os.getpid(): 5}))
        shares.usage_by_holder("GPU-other", holders, sample({second: 1, os.getpid(): 5}))
        assert [process.pid for process in its[spec.ref.external_name].processes] == [first]
    assert len(looks) == 2, "one for each device"


def test_full_gpu_is_urgent_if_a_holder_has_less_than_its_share(pool: Pool, sandbox: None) -> None:
    spec, seen = half(pool)
    other, _ = half(pool)
    work = child_of(pool, spec, seen)
    shares = pool.driver.shares()

    def urgent(used_mib: int) -> dict[str, bool]:
        found = shares.usage_by_holder(GPU, shares.holders(), sample({work: 60_000}, used_mib=used_mib))
        return {name: each.urgent for name, each in found.items()}

    assert set(urgent(78_000).values()) == {False}
    assert urgent(79_000) == {spec.ref.external_name: True, other.ref.external_name: False}


# --- enforcement ----------------------------------------------------------------------------------


def guard_of(pool: Pool, latest: Callable[[], Mapping[str, Sample]]) -> Guard:
    return Guard(pool.driver.shares(), latest, lambda _: None)


def test_overuse_is_reported_before_the_process_is_ended(pool: Pool, sandbox: None) -> None:
    spec, seen = half(pool)
    greedy, small = child_of(pool, spec, seen), child_of(pool, spec, seen)
    uses: dict[int, int | None] = {greedy: 50_000, small: 1_000}
    guard = guard_of(pool, lambda: {GPU: sample(uses)})
    told: list[tuple[int, ShareNote]] = []
    for second in range(40):
        told += [(second, note) for note in guard.round(float(second))]
        if second == 25:
            until_gone(greedy)
            del uses[greedy]
    mine = (spec.ref.workspace_id, 1, GPU)
    name = processes.name_of(small)
    assert told == [
        (0, ShareNote(*mine, "over", 51_000, 40_000, ends_in_s=20)),
        (20, ShareNote(*mine, "asked", 51_000, 40_000, name)),
        (25, ShareNote(*mine, "killed", 51_000, 40_000, name)),
        (36, ShareNote(*mine, "back", 1_000, 40_000)),
    ]
    assert alive(small) and pool.driver.observe(spec.ref).state == "running"


def test_neighbours_and_whole_gpus_are_not_limited(pool: Pool, sandbox: None) -> None:
    spec, seen = half(pool)
    other, its = half(pool)
    whole, whole_seen = half(pool, milli=1000)
    greedy, good, owner = (child_of(pool, a, b) for a, b in ((spec, seen), (other, its), (whole, whole_seen)))
    guard = guard_of(pool, lambda: {GPU: sample({greedy: 45_000, good: 40_000, owner: 70_000})})
    for second in range(30):
        guard.round(float(second))
    until_gone(greedy)
    assert alive(good) and alive(owner)


def test_stale_sample_ends_no_process(pool: Pool, sandbox: None) -> None:
    """The sampler hangs in the driver, or has released NVML for a reset."""
    spec, seen = half(pool)
    greedy = child_of(pool, spec, seen)
    at_s = time.time() - 4
    guard = guard_of(pool, lambda: {GPU: sample({greedy: 70_000}, at_s=at_s)})
    assert [note for second in range(60) for note in guard.round(float(second))] == []
    assert alive(greedy)


def test_missing_driver_values_are_reported_once(pool: Pool, sandbox: None) -> None:
    spec, seen = half(pool)
    greedy = child_of(pool, spec, seen)
    guard = guard_of(pool, lambda: {GPU: sample({greedy: None})})
    told = [note.step for second in range(90) for note in guard.round(float(second))]
    assert told == [ShareStep.UNKNOWN] and alive(greedy)


def test_overuse_and_recovery_are_reported_once_per_minute(pool: Pool, sandbox: None) -> None:
    spec, seen = half(pool)
    restless = child_of(pool, spec, seen)
    uses: dict[int, int | None] = {}
    guard = guard_of(pool, lambda: {GPU: sample(uses)})
    told = []
    for second in range(240):
        uses[restless] = 45_000 if second % 14 < 2 else 10
        told += [note.step for note in guard.round(float(second))]
    assert 3 <= told.count("over") <= 4 and told.count("back") <= told.count("over")
    assert alive(restless)


def test_continued_overuse_is_reported_each_minute(pool: Pool, sandbox: None) -> None:
    spec, _ = half(pool)
    agent = pool.agent_pid(spec.ref)
    guard = guard_of(pool, lambda: {GPU: sample({agent: 45_000})})
    told = [(second, note.step) for second in range(150) for note in guard.round(float(second))]
    assert told == [(0, "over"), (60, "over"), (120, "over")] and alive(agent)


def test_recovery_is_reported_after_a_killed_process(pool: Pool, sandbox: None) -> None:
    """Also if overuse was not reported again because of the rate limit."""
    spec, seen = half(pool)
    greedy = child_of(pool, spec, seen)
    uses: dict[int, int | None] = {greedy: 45_000}
    guard = guard_of(pool, lambda: {GPU: sample(uses)})
    told = []
    for second in range(80):
        uses[greedy] = 45_000 if second < 2 or 20 <= second < 45 else 10
        told += [note.step for note in guard.round(float(second))]
    assert told == ["over", "back", "asked", "back"]


def test_guard_continues_after_read_errors(
    pool: Pool, sandbox: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports that fail are sent later, oldest first."""
    spec, seen = half(pool)
    work = child_of(pool, spec, seen)
    monkeypatch.setattr("provisioning.node.guarding.ROUND_S", 0.01)
    monkeypatch.setattr("provisioning.gpu.outbox.RETRY_S", 0.01)
    calls: list[str] = []
    got: list[ShareNote] = []

    def latest() -> Mapping[str, Sample]:
        calls.append("look")
        if len(calls) < 3:
            raise OSError("not now")
        return {GPU: sample({work: 45_000})}

    def tell(batch: list[ShareNote]) -> None:
        calls.append("tell")
        if calls.count("tell") < 3:
            raise ConnectionError("no broker")
        got.extend(batch)

    guard = Guard(pool.driver.shares(), latest, tell)
    guard.start()
    deadline = time.monotonic() + 20
    while not got:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    guard.stop(timeout_s=5.0)
    assert not guard.is_alive() and [each.step for each in got] == ["over"]


def test_overuse_message_to_the_portal(pool: Pool) -> None:
    sent: list[tuple[str, dict[str, object], str]] = []

    class App:
        def send_task(self, name: str, *, kwargs: dict[str, object], queue: str) -> None:
            sent.append((name, kwargs, queue))

    note = ShareNote("id", 3, GPU, "killed", 5, 4, "python3")
    ShareNoteSender(App(), pool_slug="lab", node="gpu-01")([note])  # type: ignore[arg-type]
    ((name, kwargs, queue),) = sent
    assert (name, queue) == ("control.apply_share_notes", "control")
    assert messages.load(kwargs["report"], ShareNotes) == ShareNotes("lab", "gpu-01", (note,))


# --- unsupported machines -------------------------------------------------------------------------


def test_shares_are_offered_only_where_enforceable(
    make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioning.gpu.inventory.not_shown", lambda *_: ())
    driver = make_pool().driver
    with installed(FakeLibrary([h200()])):
        (node,) = driver.inventory().nodes
        scan = gpus.scan()
    assert PROVIDES_SHARES in node.provides and share_guard.refusal(scan) == ""
    monkeypatch.setenv(share_guard.VARIABLE, "off")
    with installed(FakeLibrary([h200()])):
        (node,) = driver.inventory().nodes
    assert PROVIDES_SHARES not in node.provides
    assert share_guard.VARIABLE in share_guard.refusal(scan)
    monkeypatch.delenv(share_guard.VARIABLE)
    with installed(FakeLibrary([h100_mig()])):
        (node,) = driver.inventory().nodes
    assert PROVIDES_SHARES not in node.provides, "it is cut into instances"
    assert "does not list" in share_guard.refusal(replace(scan, unreported=(GPU,)))


def test_processes_cannot_be_attributed_in_a_container(tmp_path: Path, pool: Pool) -> None:
    """NVML reports PIDs of the host; in another namespace the same number is another process."""
    scan = gpus.scan()
    assert share_guard.refusal(scan) == ""
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()
    assert "container" in share_guard.refusal(scan, proc=tmp_path)
    assert "container" in share_guard.refusal(scan, proc=tmp_path / "none")


@pytest.mark.parametrize("milli", quick_of((1, 500, 999), (500,), "`make test` has half of a GPU"))
@pytest.mark.parametrize("why", ["switched off", "in a container", "a driver that does not tell"])
def test_share_is_refused_where_it_cannot_be_enforced(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, milli: int, why: str
) -> None:
    """Whatever the portal sends, this node could not enforce the shares."""
    scan = gpus.scan()
    if why == "switched off":
        monkeypatch.setenv(share_guard.VARIABLE, "off")
    elif why == "in a container":
        monkeypatch.setattr(share_guard, "FIRST_PID_NAMESPACE", 1)
    else:
        monkeypatch.setattr(gpus, "scan", lambda: replace(scan, unreported=(GPU,)))
    with pytest.raises(NoCapacity, match="whole GPU"):
        half(pool, milli=milli)
    half(pool, milli=1000)


def test_changed_holders_are_read_again(tmp_path: Path) -> None:
    folder = state.WorkspaceDir(tmp_path, "ws-1")
    record = state.StartRecord(
        workspace_id="1", generation=1, spec_digest="", app_name="", attempt="", ports=(), memory_mib=1,
        stop_timeout_s=1, sandboxed=False, created_at=0.0, cgroups=(), own_network=False, home="team/ada",
        uid=state.NODE_USER, environment="", egress="open", egress_allow="",
        shares=(state.GpuShare(GPU, 5, 10),),
    )  # fmt: skip
    shares = Shares(tmp_path, "none")
    assert shares.holders() == []
    folder.write_record(record)
    assert shares.holders() == [ShareHolder("ws-1", "1", 1, record.shares[0])]
    folder.write_record(replace(record, generation=2))
    assert shares.holders() == [ShareHolder("ws-1", "1", 2, record.shares[0])]
    # Closed on a full disk: recorded only beside it.
    folder.reserve_closing()
    folder.close_generation(2)
    assert shares.holders() == []
