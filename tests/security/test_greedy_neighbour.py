"""Attack: a member uses all CPU, memory or processes of a shared machine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioning.drivers.local import cgroups, limits, process_limits
from provisioning.drivers.local.driver import LocalDriver
from provisioning.errors import InvalidSpec, MissingDependency
from provisioning.types import LimitedResource, LimitEnforcement, ResourceRequest
from tests.provisioning.local.local_support import Pool, ask

HOLDS_LESS = [
    frozenset(),
    frozenset({LimitedResource.MEMORY}),
    frozenset({LimitedResource.MEMORY, LimitedResource.CPU}),
    frozenset({LimitedResource.MEMORY, LimitedResource.PROCESSES}),
]


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    made: list[Pool] = []

    def make(**config: Any) -> Pool:
        made.append(Pool(tmp_path, **config))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def without(monkeypatch: pytest.MonkeyPatch, holds: frozenset[LimitedResource]) -> None:
    """A machine that enforces only these limits."""
    version = 2 if holds else 0
    found = cgroups.CgroupHost(version, reason="for this test", holds=holds)
    monkeypatch.setattr(cgroups, "detect", lambda *_: found)


@pytest.mark.parametrize("holds", HOLDS_LESS, ids=lambda holds: "+".join(sorted(holds)) or "nothing")
@pytest.mark.parametrize("setting", ["1", "true", "Yes"])
def test_multi_user_mode_requires_cpu_memory_and_process_limits(make_pool, monkeypatch, holds, setting):
    without(monkeypatch, holds)
    monkeypatch.setenv("BERTH_MULTIUSER", setting)
    pool = make_pool()
    monkeypatch.setattr(pool.driver, "_require_isolation", lambda sandbox: None)  # on any machine
    spec = pool.spec()
    with pytest.raises(MissingDependency) as caught:
        pool.start(spec)
    assert caught.value.code == "limits_required"
    assert "Delegate=yes" in caught.value.message
    assert not (pool.home / "local" / spec.ref.external_name).exists()


@pytest.mark.parametrize("holds", HOLDS_LESS, ids=lambda holds: "+".join(sorted(holds)) or "nothing")
def test_inventory_shows_enforced_limits(make_pool, monkeypatch, holds):
    without(monkeypatch, holds)
    (node,) = make_pool().driver.inventory().nodes
    assert set(node.limited) & set(limits.REQUIRED) == holds
    (said,) = [text for text in node.warnings if "cannot be limited" in text]
    for each in limits.REQUIRED:
        assert (limits._WORDS[each] in said.partition("(")[0]) == (each not in holds)


@pytest.fixture
def all_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multi-user machine with limits for CPU, memory and processes."""
    without(monkeypatch, frozenset(limits.REQUIRED))
    monkeypatch.setenv("BERTH_MULTIUSER", "1")
    monkeypatch.setattr(LocalDriver, "_require_isolation", lambda *_: None)  # on any machine


def test_multi_user_mode_requires_a_home_limit(make_pool, all_held):
    pool = make_pool()
    (node,) = pool.driver.inventory().nodes
    assert LimitedResource.DISK not in node.limited and limits.NO_HOME_LIMIT in node.warnings
    spec = pool.spec()
    with pytest.raises(MissingDependency) as caught:
        pool.start(spec)
    assert (caught.value.code, caught.value.message) == ("homes_unlimited", limits.NO_HOME_LIMIT)
    assert not (pool.home / "local" / spec.ref.external_name).exists()


@pytest.mark.parametrize(
    ("told", "own", "held"),
    [(51200, "", True), (None, "51200", True), (0, "51200", False), (None, "0", False), (None, "", False)],
)
def test_home_limit_is_sent_by_the_portal(make_pool, all_held, monkeypatch, told, own, held):
    monkeypatch.setenv("BERTH_HOME_LIMIT_MIB", own)
    (node,) = make_pool(**({} if told is None else {"home_limit_mib": told})).driver.inventory().nodes
    assert (LimitedResource.DISK in node.limited) == held
    assert (limits.NO_HOME_LIMIT in node.warnings) != held


def test_single_user_needs_no_home_limit(make_pool, monkeypatch):
    without(monkeypatch, frozenset(limits.REQUIRED))
    monkeypatch.setenv("BERTH_MULTIUSER", "0")
    assert limits.NO_HOME_LIMIT not in make_pool().driver.inventory().nodes[0].warnings
    limits.require(cgroups.detect(""), 0)


def test_invalid_home_limit_names_the_setting(make_pool, monkeypatch):
    monkeypatch.setenv("BERTH_HOME_LIMIT_MIB", "50G")
    with pytest.raises(InvalidSpec, match="BERTH_HOME_LIMIT_MIB is “50G”"):
        make_pool()


def test_single_user_without_limits_gets_a_warning(make_pool, monkeypatch):
    without(monkeypatch, frozenset())
    monkeypatch.setenv("BERTH_MULTIUSER", "0")
    pool = make_pool()
    assert pool.driver.inventory().nodes[0].limits is LimitEnforcement.RLIMIT
    assert ask(pool.run(pool.spec()), "1 + 1") == 2


@pytest.fixture
def limited(make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A multi-user pool on this machine."""
    pool = make_pool()
    if complaint := limits.warning(cgroups.detect(pool.driver.instance)):
        pytest.skip(complaint)
    return pool


def test_processes_of_a_workspace_share_its_memory_limit(limited):
    request = ResourceRequest(cpu_milli=1000, memory_mib=192)
    spec = limited.spec(resources=request)
    seen = limited.run(spec)
    eat = "x = bytearray(b'x' * (48 << 20)); print('ate', flush=True); input()"
    began = f"__import__('subprocess').Popen([sys.executable, '-c', {eat!r}], stdin=-1, stdout=-1)"
    ate = ask(
        seen,
        "(lambda eaters: ([each.stdout.readline().decode() for each in eaters],"
        f" [each.kill() for each in eaters])[0])([{began} for _ in range(8)])",
    )
    assert "" in ate, "384 MiB were taken by a workspace of 192 MiB"
    assert cgroups.oom_kills(
        cgroups.paths(cgroups.detect(limited.driver.instance), spec.ref.external_name)
    ) >= ate.count("")


def test_fork_bomb_is_stopped_by_the_process_limit(limited, monkeypatch):
    monkeypatch.setattr(process_limits, "workspace_limit", lambda _cpu_milli: 60)
    spec = limited.spec()
    seen = limited.run(spec)
    forks = "[__import__('subprocess').Popen(['sleep', '60']) for _ in range(100)]"
    assert ask(seen, forks) == "BlockingIOError"
    inside = cgroups.pids(cgroups.paths(cgroups.detect(limited.driver.instance), spec.ref.external_name))
    assert 30 < len(inside) <= 60


def forks(number: int) -> str:
    """Return an expression that starts that many processes and returns how many succeeded."""
    return (
        f"(lambda popen: sum(1 for _ in range({number}) if popen(['sleep', '60'])))"
        "(__import__('subprocess').Popen)"
    )


def test_workspaces_leave_processes_for_services(limited, monkeypatch):
    first, second = limited.run(limited.spec()), limited.run(limited.spec(owner="bob"))
    parents = cgroups.detect(limited.driver.instance).parents
    before = len(cgroups.pids(parents))
    monkeypatch.setattr(process_limits, "total_limit", lambda _parent: before + 60)
    limited.run(limited.spec(owner="eve"))
    # Each stays far below its own limit; together they reach the common one.
    assert ask(first, forks(30)) == 30
    assert ask(second, forks(60)) == "BlockingIOError"
    assert len(cgroups.pids(parents)) <= before + 60
    subprocess.run(["/usr/bin/true"], check=True, timeout=20)


def test_process_limit_grows_with_workspace_size(limited):
    found = {}
    for cpu_milli in (500, 1000, 4000):
        spec = limited.spec(owner=f"of{cpu_milli}", resources=ResourceRequest(cpu_milli, 256))
        limited.run(spec)
        groups = cgroups.paths(cgroups.detect(limited.driver.instance), spec.ref.external_name)
        (found[cpu_milli],) = [
            int((group / "pids.max").read_text()) for group in groups if (group / "pids.max").exists()
        ]
    assert found == {500: 1536, 1000: 1536, 4000: 3072}


@pytest.mark.parametrize(
    ("pid_max", "threads_max", "unit", "expected"),
    [
        ("32768", "127000", "max", 24576),
        ("4194304", "127000", "max", 95250),
        ("4194304", "127000", "4000", 3000),
        ("4194304", "127000", "1", 1),
    ],
)
def test_services_keep_a_quarter_of_the_processes(tmp_path, pid_max, threads_max, unit, expected):
    kernel, parent = tmp_path / "kernel", tmp_path / "unit.service" / "berth-of-a-test"
    kernel.mkdir()
    parent.mkdir(parents=True)
    (kernel / "pid_max").write_text(f"{pid_max}\n")
    (kernel / "threads-max").write_text(f"{threads_max}\n")
    (parent.parent / "pids.max").write_text(f"{unit}\n")
    assert process_limits.total_limit(parent, kernel) == expected
    assert process_limits.total_limit(parent, tmp_path / "none") == (None if unit == "max" else expected)
