"""A disk without free bytes or inodes: users can sign in and stop workspaces; later all recovers."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis.exceptions import ResponseError

from provisioning import redis_client
from tests import instance
from tests.instance import Berth, eventually
from tests.populate import PASSWORD

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("no_room"),
    pytest.mark.thorough("a Berth and a disk of its own; `make test` has the watch in tests/embedded"),
]

MIB = 1 << 20


class Disk:
    """A small file system for the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        mounted = self._mount("-t", "tmpfs", "-o", "size=1400m,nr_inodes=200000", "tmpfs")
        if mounted.returncode:
            pytest.skip("no file system can be mounted here")

    def fill(self, what: str) -> None:
        """Leave no free byte, or no free inode."""
        found = os.statvfs(self.folder)
        used = {
            "bytes": f"size={(found.f_blocks - found.f_bfree) * found.f_frsize}",
            "inodes": f"nr_inodes={found.f_files - found.f_ffree}",
        }[what]
        # Other processes may write or delete meanwhile.
        eventually(lambda: self._remount(used), limit_s=20, what="the disk is full")
        self._use_up(what)

    def make_room(self) -> None:
        assert self._remount("size=1400m,nr_inodes=200000")

    def _remount(self, options: str) -> bool:
        return self._mount("-o", f"remount,{options}").returncode == 0

    def _use_up(self, what: str) -> None:
        for number in range(10_000):
            try:
                with (self.folder / f"filler-{number}").open("wb") as file:
                    if what == "bytes":
                        file.write(bytes(4096))
            except OSError:
                return
        pytest.fail("the disk is not full")

    def _mount(self, *options: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["mount", *options, str(self.folder)], capture_output=True, timeout=20, check=False
        )


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    folder = tmp_path_factory.mktemp("disk")
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], timeout=20, check=False)


@pytest.fixture(scope="module")
def berth(disk: Disk) -> Iterator[Berth]:
    with instance.running(disk.folder, environment=None) as found:
        yield found


def sign_in(berth: Berth, name: str) -> httpx.Response:
    with httpx.Client(base_url=berth.url, timeout=20) as browser:
        page = browser.get("/sign-in/")
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert found is not None
        fields = {"username": name, "password": PASSWORD, "csrfmiddlewaretoken": found[1]}
        return browser.post("/sign-in/", data=fields, headers={"Referer": f"{berth.url}/sign-in/"})


def has_reserve(berth: Berth) -> bool:
    log = berth.home / "database" / "berth.sqlite3-wal"
    return log.exists() and log.stat().st_size >= 4 * MIB


@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_users_can_sign_in_and_stop_workspaces_on_a_full_disk(berth: Berth, disk: Disk, what: str) -> None:
    ada = berth.api("ada")
    made = ada.create("files", "tiny")["id"]
    ada.wait(made, "running")
    eventually(lambda: has_reserve(berth), limit_s=20, what="the database has its reserve")
    disk.fill(what)
    try:
        assert sign_in(berth, "ada").status_code == 302
        if what == "bytes":
            health = httpx.get(f"{berth.url}/healthz", timeout=20)
            assert health.status_code == 503 and "disk is full" in health.text
        ada.act(made, "stop")
        ada.wait(made, "stopped", limit_s=40)
        assert berth.owned() == ()
    except BaseException:
        print(berth.last_lines())
        raise
    finally:
        disk.make_room()
    eventually(
        lambda: httpx.get(f"{berth.url}/healthz", timeout=20).is_success, limit_s=40, what="all is well"
    )
    ada.act(made, "start")
    ada.wait(made, "running")
    ada.act(made, "delete")
    ada.wait(made, "terminated")
    ada.close()


def test_workers_recover_after_redis_refused_writes(berth: Berth) -> None:
    """As Redis does with a full disk, also to a worker that waits for a message."""
    url = berth.instance.redis_url("control", berth.secret("redis_control"))
    before = {name: berth.services()[name]["pid"] for name in ("control", "node")}
    with redis_client.client(url) as client:
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(ResponseError, match="NOREPLICAS"):
            client.set("berth:test", 1)
        time.sleep(3)  # each worker retries once a second
        client.config_set("min-replicas-to-write", 0)
    ada = berth.api("ada")
    made = ada.create("files", "tiny")["id"]
    ada.wait(made, "running")
    ada.act(made, "delete")
    ada.wait(made, "terminated")
    ada.close()
    # The same processes: none has exited.
    assert {name: berth.services()[name]["pid"] for name in before} == before
