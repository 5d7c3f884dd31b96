"""`berth node status`, `run` and `leave`, and copied or damaged installations."""

from __future__ import annotations

import datetime as dt
import os
import socket
from pathlib import Path

import pytest

from provisioning.drivers.local import cgroups, isolation
from provisioning.drivers.local.isolation import SandboxProbe
from provisioning.host import abilities, membership, rotation
from provisioning.host.folder import NodeFolder
from provisioning.host.notify import notify
from tests.host.conftest import Berth
from tests.host.portal_doors import Doors, problem

DAY = dt.timedelta(days=1)


def test_expired_certificate_is_reported_with_the_fix(
    join: Berth, berth: Berth, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue = doors.authority.issue
    monkeypatch.setattr(doors.authority, "issue", lambda key, **rest: issue(key, **rest, days=-0.5))
    assert join().code == 0
    done = berth("status")
    assert done.code == 3 and "expired on" in done.out and "berth node leave --forget" in done.out


@pytest.mark.parametrize(("in_days", "due"), [(0, False), (59, False), (61, True), (95, True)])
def test_keys_are_rotated_30_days_before_expiry(
    join: Berth, folder: NodeFolder, in_days: int, due: bool
) -> None:
    assert join().code == 0
    now = dt.datetime.now(dt.UTC) + in_days * DAY
    assert rotation.is_due(membership.load(folder), now) is due


def test_running_node_renews_its_certificate(
    join: Berth, folder: NodeFolder, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue = doors.authority.issue
    monkeypatch.setattr(doors.authority, "issue", lambda key, **rest: issue(key, **rest, days=0.1))
    assert join().code == 0
    before = membership.load(folder)
    monkeypatch.setattr(doors.authority, "issue", issue)
    told: list[str] = []
    renewal = rotation.Renewal(folder, lambda line: (told.append(line), renewal.stop()))
    renewal.start()
    renewal._thread.join(30)
    assert "rotated" in told[0]
    assert membership.load(folder).key != before.key


def test_node_unknown_to_the_portal_can_leave(
    join: Berth, berth: Berth, folder: NodeFolder, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert join().code == 0
    before = membership.load(folder)
    monkeypatch.setattr(doors, "granted", lambda *_: problem("nothing", "That is no answer."))
    done = berth("rotate")
    assert done.code == 4 and "cannot be read" in done.err
    assert membership.load(folder) == before
    doors.answer_leave = (403, problem("not_a_joined_node", "This machine is no node."))
    done = berth("leave")
    assert done.code == 0 and "no longer had b" in done.out
    assert not folder.state_file.exists()


def test_forget_makes_no_request(join: Berth, berth: Berth, folder: NodeFolder, doors: Doors) -> None:
    assert join().code == 0
    asked = len(doors.asked)
    done = berth("leave", "--forget")
    assert done.code == 0 and "Revoke and remove the machine on its pool's page" in done.out
    assert len(doors.asked) == asked and not folder.state_file.exists()


def test_node_on_a_copied_disk_does_not_run(
    join: Berth, berth: Berth, folder: NodeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert join().code == 0
    other = tmp_path / "machine-id"
    other.write_text("f" * 32 + "\n")
    monkeypatch.setattr(membership.machine_id, "__defaults__", (other,))
    done = berth("run")
    assert done.code == 1 and "belongs to another machine, joined as b" in done.err
    assert "berth node leave --forget" in done.err


def test_damaged_state_file_is_reported_with_the_fix(join: Berth, berth: Berth, folder: NodeFolder) -> None:
    assert join().code == 0
    folder.state_file.write_text('{"answer": 1}')
    done = berth("status")
    assert done.code == 1 and "is damaged" in done.err and "--forget" in done.err


def test_lost_files_are_written_again(join: Berth, folder: NodeFolder) -> None:
    assert join().code == 0
    key = folder.key.read_text()
    folder.key.unlink()
    folder.certificate.write_text("old")
    membership.load(folder)
    assert folder.key.read_text() == key and "BEGIN CERTIFICATE" in folder.certificate.read_text()


def test_another_user_cannot_run_the_node(join: Berth, berth: Berth, monkeypatch: pytest.MonkeyPatch) -> None:
    assert join().code == 0
    monkeypatch.setattr(membership.os, "geteuid", lambda: 4242)
    done = berth("run")
    assert done.code == 1 and f"the user with ID {os.getuid()}" in done.err


def test_machine_capabilities_are_probed(folder: NodeFolder) -> None:
    folder.local.mkdir(parents=True)
    found = {each.label: each for each in abilities.probe(folder, as_service=False)}
    assert set(found) == {"Size", "Sandbox", "Network", "System calls", "Limits", "GPUs"}
    assert all(each.text for each in found.values())


def test_missing_programs_name_their_package(folder: NodeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "Workspaces are not isolated. Install the package “bubblewrap”."
    monkeypatch.setattr(isolation, "probe", lambda: SandboxProbe("", reason=reason))
    found = abilities.probe(folder, as_service=False)
    assert abilities.missing(found)
    texts = {each.label: each.text for each in found}
    assert "the package “bubblewrap”" in texts["Sandbox"] and texts["Network"] == "needs the sandbox"


@pytest.mark.parametrize("version", [1, 2])
def test_limits_set_later_by_systemd_are_reported_as_good(
    folder: NodeFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int
) -> None:
    if version == 2:
        (tmp_path / "cgroup.controllers").write_text("memory\n")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "detect", lambda _: cgroups.CgroupHost(0, reason="nothing is ours"))
    said = {each.label: each for each in abilities.probe(folder, as_service=True)}["Limits"]
    assert said.good == (version == 2), "systemd gives nobody groups of version 1"
    assert ("set by systemd" in said.text) == said.good
    assert said.good or "nothing is ours" in said.text


def test_systemd_is_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notify("READY=1")  # without systemd: nothing
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        handle = os.open(tmp_path, os.O_PATH)
        try:
            ear.bind(f"/proc/self/fd/{handle}/notify")
            monkeypatch.setenv("NOTIFY_SOCKET", f"/proc/self/fd/{handle}/notify")
            notify("READY=1")
            assert ear.recv(100) == b"READY=1"
        finally:
            os.close(handle)
    notify("STOPPING=1")  # nothing listens any more
