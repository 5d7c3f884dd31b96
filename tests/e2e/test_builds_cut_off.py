"""Interrupted environment builds in real processes: environments are complete and built once.

Its own instance with packages from a folder of the test. Packages pause a build with a recognizable `sleep`;
the node worker is then killed. Leases are moved instead of waiting for them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioning.drivers.local import isolation
from provisioning.drivers.local.processes import children_of, start_ticks
from provisioning.environments.store import PREFIX, STAMP
from tests import instance
from tests.e2e.build_site import LIMIT_S, TEMPLATE, Site
from tests.instance import Api, eventually
from tests.provisioning.environments.package_index import PackageFolder

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("builds-cut-off"),
    pytest.mark.thorough("a Berth and an index of its own; `make test` kills builds in tests/provisioning"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not isolation.probe().bwrap:
        pytest.skip("no sandbox works here")
    folder = tmp_path_factory.mktemp("cut-off")
    packages = PackageFolder(folder / "index")
    packages.wheel("pip")
    settings = {
        "BERTH_NODE_PACKAGE_INDEX": packages.url, "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "",
        "UV_FIND_LINKS": "", "BERTH_DISK_RESERVE_MIB": "0", "BERTH_NODE_LEASE_S": "8",
        "BERTH_HEARTBEAT_S": "4",
    }  # fmt: skip
    with instance.running(folder, environment=None, **settings) as berth:
        admin, ben = Api(berth, berth.manage("create_token", "admin")), berth.api("ben")
        admin.json("POST", "templates", TEMPLATE)
        yield Site(berth, packages, admin, ben)
        admin.close()
        ben.close()


class Hold:
    """Package code that waits until released, with a `sleep` of a unique length."""

    def __init__(self, number: int) -> None:
        self.seconds = str(700_000 + os.getpid() % 10_000 * 10 + number)
        self.code = f"__import__('os').system('sleep {self.seconds}')"

    def found(self) -> list[int]:
        argv = ["sleep", self.seconds]
        rows = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if path.read_bytes().decode(errors="replace").split("\0")[:2] == argv:
                    rows.append(int(path.parent.name))
        return rows

    def reached(self) -> None:
        eventually(
            lambda: self.found() or None, limit_s=LIMIT_S, what="the build has come to where it is held"
        )

    def let_go(self) -> None:
        """Release the current step; a step can be held more than once."""
        for pid in self.found():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def source(self) -> str:
        """Code of a source distribution that pauses the build of its wheel."""
        return f"SAID = 1\ndef attack():\n    {self.code}\n"

    def files(self) -> dict[str, str]:
        """Files of a wheel that pause every Python start in the environment."""
        return {"held.pth": f"import os; {self.code}\n"}


def waiting_for_its_turn(site: Site, name: str) -> None:
    """Before the folder exists: another build has the lock."""
    site.packages.wheel(name)
    with site.store.build_lock() as mine:
        assert mine
        site.ask(name, name)
        eventually(
            lambda: any(row["stage"] == "waiting" for row in site.builds(name)),
            limit_s=LIMIT_S,
            what="it waits",
        )
        assert not list(site.store.building.iterdir())
        site.cannot_be_started(name)
        old = site.pid("node")
        os.kill(old, signal.SIGKILL)
        eventually(lambda: site.pid("node") not in (0, old), limit_s=30, what="a new node worker is there")


def while_packages_come(site: Site, name: str) -> None:
    hold = Hold(1)
    made = site.packages.source(name, hold.source())
    site.ask(name, name)
    hold.reached()
    site.cannot_be_started(name)
    site.kill_node()
    assert not hold.found(), "what it had started ends with it"
    made.unlink()


def while_they_are_installed(site: Site, name: str) -> None:
    """While many files are written; compiled a moment later."""
    site.packages.wheel(name, files={f"{name}_parts/part{n}.py": f"number = {n}\n" * 40 for n in range(1500)})
    site.ask(name, name)
    parts = f"{PREFIX}*/lib/python3*/site-packages/{name}_parts"
    until = time.monotonic() + LIMIT_S
    while not list(site.store.staging.glob(parts)):
        assert time.monotonic() < until, "nothing was installed"
    site.kill_node()


def before_its_stamp(site: Site, name: str) -> None:
    hold = Hold(2)
    made = site.packages.wheel(name, files=hold.files())
    site.ask(name, name)
    hold.reached()
    (built,) = site.store.staging.glob(f"{PREFIX}*")
    assert not (built / STAMP).exists()
    site.cannot_be_started(name)
    site.kill_node()
    assert not hold.found(), "what it had started ends with it"
    made.unlink()


MOMENTS = [waiting_for_its_turn, while_packages_come, while_they_are_installed, before_its_stamp]


@pytest.mark.parametrize("cut_off", MOMENTS, ids=lambda each: each.__name__)
def test_build_killed_before_completion_is_repeated_once(
    site: Site, cut_off: Callable[[Site, str], None]
) -> None:
    name = cut_off.__name__.replace("_", "")
    before = site.holding()
    cut_off(site, name)
    assert site.holding() == before, "an environment is there whole or not at all"
    site.cannot_be_started(name)
    if not list(site.packages.folder.glob(f"simple/{name}/*.whl")):
        site.packages.wheel(name, version="2.0")
    site.a_minute_of_silence()
    site.is_ready_and_starts(name, name)
    assert len(site.builds(name)) == 1
    assert len(site.holding()) == len(before) + 1


def new_stamp(site: Site, before: set[str]) -> Path | None:
    found = site.store.folder.glob(f"{PREFIX}*/{STAMP}")
    return next((path for path in found if path.parent.name.removeprefix(PREFIX) not in before), None)


def test_build_killed_after_completion_before_its_report_is_not_repeated(site: Site) -> None:
    name, hold, before = "wholebutunsaid", Hold(3), site.holding()
    site.packages.wheel(name, files=hold.files())
    site.ask(name, name)
    hold.reached()
    redis = site.pid("redis")
    os.kill(redis, signal.SIGSTOP)
    try:
        # Its result is lost with it.
        stamp = eventually(
            lambda: hold.let_go() or new_stamp(site, before), limit_s=LIMIT_S, what="it is whole"
        )
        node = site.pid("node")
        others = children_of(node) or []
        os.kill(node, signal.SIGKILL)
        # Before Redis goes on: what waits there to be sent would be sent by who has not ended yet.
        eventually(
            lambda: all(start_ticks(pid) is None for pid in others),
            limit_s=LIMIT_S,
            what="it has ended",
        )
    finally:
        os.kill(redis, signal.SIGCONT)
    made = stamp.stat()
    site.cannot_be_started(name)
    site.a_minute_of_silence()
    assert site.ended(name)["state"] == "ready", site.log(name)
    assert site.holding() - before == {site.digest(name)}
    assert "This environment is already installed." in site.log(name)
    now = stamp.stat()
    assert (now.st_ino, now.st_mtime_ns) == (made.st_ino, made.st_mtime_ns), "it is built once"
    assert not hold.found()


def test_two_builds_of_the_same_content_at_once_run_once(site: Site) -> None:
    before = site.holding()
    site.packages.wheel("alike")
    with site.store.build_lock() as mine:
        assert mine
        site.ask("alike-a", "alike")
        site.ask("alike-b", "alike==1.0")
    assert [site.ended(slug)["state"] for slug in ("alike-a", "alike-b")] == ["ready", "ready"]
    assert site.digest("alike-a") == site.digest("alike-b")
    assert site.holding() - before == {site.digest("alike-a")}
    said = [("This environment is already installed." in site.log(slug)) for slug in ("alike-a", "alike-b")]
    assert sorted(said) == [False, True], "one is built, the other finds it"


def test_unreachable_node_builds_once_after_it_returns(site: Site) -> None:
    name, before = "nodeaway", site.holding()
    site.packages.wheel(name)
    node = site.pid("node")
    os.kill(node, signal.SIGSTOP)
    try:
        site.ask(name, name)
        assert [row["state"] for row in site.builds(name)] == ["queued"]
        site.cannot_be_started(name)
        assert site.holding() == before
    finally:
        os.kill(node, signal.SIGCONT)
    site.is_ready_and_starts(name, name)
    assert len(site.holding()) == len(before) + 1
