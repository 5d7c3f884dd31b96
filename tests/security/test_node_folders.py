"""Attacks from a workspace on folders of its node, and by messages naming folders."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioning import mounts
from provisioning.drivers.local import isolation
from provisioning.errors import InvalidSpec, MissingDependency
from provisioning.node.local_settings import apply_local_settings
from provisioning.types import PoolConfig
from tests.provisioning.local.local_support import Pool, ask


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Two folders beside those of Berth that users may enter, as created by an operator."""
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    for name, mode in (("imagenet", 0o755), ("scratch", 0o1777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "imagenet" / "labels.txt").write_text("cat\n")
    (tmp_path / "imagenet" / "labels.txt").chmod(0o644)
    return tmp_path


@pytest.fixture
def pool(shared: Path) -> Iterator[Pool]:
    if not isolation.probe().bwrap:
        pytest.skip(isolation.probe().reason)
    made = Pool(shared, mounts=f"imagenet={shared}/imagenet scratch={shared}/scratch:rw")
    yield made
    made.close()


def shell_output(seen: Any, command: str) -> str:
    return str(ask(seen, f"os.popen({f'( {command} ) 2>&1'!r}).read()"))


def test_read_only_folder_cannot_be_written(pool: Pool, shared: Path) -> None:
    seen = pool.run(pool.spec(mounts=("imagenet",)))
    assert shell_output(seen, "cat /data/imagenet/labels.txt") == "cat\n"
    for attempt in (
        "echo dog > /data/imagenet/labels.txt", "touch /data/imagenet/new", "rm /data/imagenet/labels.txt",
        "chmod 777 /data/imagenet", "mount -o remount,rw /data/imagenet", "mkdir /data/imagenet/there",
    ):  # fmt: skip
        assert shell_output(seen, attempt), attempt
    assert sorted(path.name for path in (shared / "imagenet").iterdir()) == ["labels.txt"]
    assert (shared / "imagenet" / "labels.txt").read_text() == "cat\n"
    # Folders it did not request are not mounted, although the machine offers them.
    assert shell_output(seen, "ls /data") == "imagenet\n"


def test_shared_folder_is_readable_and_links_do_not_escape(pool: Pool, shared: Path) -> None:
    (shared / "aside").write_text("not for notebooks")
    mine = pool.run(pool.spec(mounts=("imagenet", "scratch:rw")))
    assert shell_output(mine, "echo 42 > /data/scratch/result; cat /data/scratch/result") == "42\n"
    for link, target in (("up", "../aside"), ("out", f"{shared}/aside"), ("berth", f"{pool.home}")):
        shell_output(mine, f"ln -s {target} /data/scratch/{link}")
        assert "No such file" in shell_output(mine, f"cat /data/scratch/{link}"), link
    theirs = pool.run(pool.spec(owner="grace", mounts=("scratch",)))
    assert shell_output(theirs, "cat /data/scratch/result") == "42\n"
    assert shell_output(theirs, "echo 43 > /data/scratch/result")
    assert (shared / "scratch" / "result").read_text() == "42\n"


def test_folders_are_mounted_nosuid_and_nodev(pool: Pool, shared: Path) -> None:
    seen = pool.run(pool.spec(mounts=("scratch:rw",)))
    options = shell_output(seen, "grep ' /data/scratch ' /proc/self/mounts").split()[3].split(",")
    assert {"nosuid", "nodev"} <= set(options)
    assert shell_output(seen, "mknod /data/scratch/null c 1 3")


def test_message_cannot_mount_paths_or_unlisted_folders(pool: Pool, shared: Path) -> None:
    for words, why in ((("homes",), "has no folder"), (("imagenet:rw",), "is read-only")):
        with pytest.raises(MissingDependency, match=why):
            pool.start(pool.spec(mounts=words))
    environ = {"BERTH_HOME": str(pool.home)}
    with pytest.raises(InvalidSpec, match="BERTH_MOUNTS"):
        apply_local_settings(PoolConfig("local", "local", {"mounts": "etc=/etc"}), environ)
    assert apply_local_settings(PoolConfig("local", "local", {}), environ).config["mounts"] == ""


@pytest.mark.parametrize(
    "path",
    [lambda pool: pool.home, lambda pool: pool.home / "homes" / "lab", lambda pool: Path("/"), None],
    ids=["state", "homes", "machine", "link"],
)
def test_internal_folders_cannot_be_mounted(
    pool: Pool, shared: Path, path: Callable[[Pool], Path] | None
) -> None:
    (pool.home / "homes" / "lab").mkdir(parents=True, exist_ok=True)
    if path is None:
        (shared / "link").symlink_to(pool.home / "homes")
    own = shared / "link" if path is None else path(pool)
    pool.driver.mounts = f"sneaky={own}:rw imagenet={shared}/imagenet"
    with pytest.raises(InvalidSpec, match="Berth stores its own"):
        pool.start(pool.spec(mounts=("sneaky",)))
    node = pool.driver.inventory().nodes[0]
    assert "mount:sneaky" not in node.provides and "mount:imagenet" in node.provides
    assert any("sneaky" in warning for warning in node.warnings)


def test_inventory_lists_folders_and_problems_of_unusable_ones(pool: Pool, shared: Path) -> None:
    node = pool.driver.inventory().nodes[0]
    found = [name for name in node.provides if name.startswith(mounts.NEED)]
    assert found == ["mount:imagenet", "mount:scratch", "mount:scratch:rw"]
    pool.driver.mounts = f"gone={shared}/gone imagenet={shared}/imagenet"
    node = pool.driver.inventory().nodes[0]
    assert [name for name in node.provides if name.startswith(mounts.NEED)] == ["mount:imagenet"]
    assert any("gone" in warning and "Create the folder" in warning for warning in node.warnings)
    for text, why in (
        ("imagenet", "Write NAME=/folder"),
        (f"a={shared} a=/srv", "twice"),
        ("a=srv", "Write NAME"),
    ):
        pool.driver.mounts = text
        node = pool.driver.inventory().nodes[0]
        assert not any(name.startswith(mounts.NEED) for name in node.provides)
        assert any(why in warning for warning in node.warnings)


def test_unreachable_file_server_does_not_block_the_inventory(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder never answers: callers must not wait for it or start another check."""
    away, asked = threading.Event(), []

    def hang(path: str) -> str:
        asked.append(path)
        away.wait()
        return path

    monkeypatch.setattr(mounts.os.path, "realpath", hang)
    monkeypatch.setattr(mounts, "READ_TIMEOUT_S", 0.05)
    try:
        for _ in range(3):
            offer = mounts.folder_offer(f"nfs={shared}/nfs", own=(), sandboxed=True)
            assert offer.provides == () and "does not answer" in offer.warnings[0]
        assert len(asked) == 1
    finally:
        away.set()
