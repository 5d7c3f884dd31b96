"""Nodes cut off from the portal: causes and grace periods."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from provisioning.host import leaving, membership, membership_watch
from provisioning.host.folder import NodeFolder
from provisioning.host.membership_watch import (
    CutOff,
    GracePeriods,
    MembershipWatch,
    PortalAnswer,
    next_cut_off,
)
from provisioning.service.console import Console, Problem
from tests.host.authority import Authority
from tests.host.conftest import Berth
from tests.host.portal_doors import Doors, problem

BOOT = "boot-1"
REVOKED = (403, problem("not_a_joined_node", "This machine is no node."))


DEFAULT_PERIODS = GracePeriods()


def after(
    *looks: tuple[PortalAnswer, float], limits: GracePeriods = DEFAULT_PERIODS
) -> tuple[CutOff | None, bool]:
    """The state after these checks, and whether workspaces end."""
    found, due = None, False
    for word, now_s in looks:
        found = next_cut_off(found, word, boot=BOOT, now_s=now_s)
        due = found is not None and membership_watch.is_due(found, limits, now_s=now_s)
    return found, due


def looks(word: PortalAnswer, *, until_s: float, every_s: float = 60) -> list[tuple[PortalAnswer, float]]:
    return [(word, at * every_s) for at in range(int(until_s / every_s) + 1)]


def test_revoked_node_has_ten_minutes_and_isolated_node_no_limit() -> None:
    assert after(*looks(PortalAnswer.REVOKED, until_s=540))[1] is False
    assert after(*looks(PortalAnswer.REVOKED, until_s=600))[1] is True
    assert after(*looks(PortalAnswer.SILENT, until_s=10_000_000, every_s=10_000))[1] is False
    never = GracePeriods(revoked_s=0)
    assert after(*looks(PortalAnswer.REVOKED, until_s=10_000_000, every_s=10_000), limits=never)[1] is False


def test_one_member_answer_resets_the_count() -> None:
    limits = GracePeriods(no_contact_s=600)
    assert after(*looks(PortalAnswer.SILENT, until_s=600), limits=limits)[1] is True
    restarted = [
        *looks(PortalAnswer.SILENT, until_s=540),
        (PortalAnswer.MEMBER, 560),
        (PortalAnswer.SILENT, 600),
        (PortalAnswer.SILENT, 660),
    ]
    assert after(*restarted, limits=limits)[1] is False
    unclear = [
        *looks(PortalAnswer.SILENT, until_s=540),
        (PortalAnswer.UNCLEAR, 560),
        (PortalAnswer.SILENT, 600),
        (PortalAnswer.SILENT, 660),
    ]
    assert after(*unclear, limits=limits)[1] is False


def test_revoked_node_stays_revoked_while_the_portal_is_silent() -> None:
    told = [(PortalAnswer.REVOKED, 0.0), *[(PortalAnswer.SILENT, at * 60.0) for at in range(1, 12)]]
    found, due = after(*told)
    assert found is not None and found.word is PortalAnswer.REVOKED and due


def test_silence_before_a_revocation_does_not_count_toward_its_grace_period() -> None:
    found, due = after(*looks(PortalAnswer.SILENT, until_s=6000), (PortalAnswer.REVOKED, 6060))
    assert found == CutOff(PortalAnswer.REVOKED, BOOT, 6060) and not due


def test_gap_between_checks_alone_does_not_cut_off() -> None:
    """One check an hour after the last: it was not confirmed three times."""
    assert after((PortalAnswer.REVOKED, 0), (PortalAnswer.REVOKED, 3600))[1] is False
    assert (
        after((PortalAnswer.REVOKED, 0), (PortalAnswer.REVOKED, 3600), (PortalAnswer.REVOKED, 3660))[1]
        is True
    )


def test_reboot_resets_the_state() -> None:
    before = CutOff(PortalAnswer.REVOKED, "another boot", 0, failed_checks=50)
    assert next_cut_off(before, PortalAnswer.SILENT, boot=BOOT, now_s=9000) == CutOff(
        PortalAnswer.SILENT, BOOT, 9000
    )


def test_wall_clock_changes_have_no_effect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The wall clock jumps a year while the portal is silent; grace periods use the monotonic clock."""
    ended: list[object] = []
    monkeypatch.setattr(membership_watch, "end_all", lambda *_: ended.append(1) or 0)
    folder = NodeFolder(tmp_path)
    folder.run.mkdir(parents=True)
    watch = MembershipWatch(folder, {}, GracePeriods(no_contact_s=3600), lambda _: None)
    for shift in (0.0, 365 * 86400.0, -365 * 86400.0, 0.0):
        monkeypatch.setattr(time, "time", lambda shift=shift: 1.8e9 + shift)
        watch.handle(PortalAnswer.SILENT, now_s=time.monotonic())
    assert ended == []


def test_settings() -> None:
    assert membership_watch.graces({}) == GracePeriods(600, 0)
    assert membership_watch.graces({"BERTH_REVOKED_GRACE_S": "0"}) == GracePeriods(0, 0)
    assert membership_watch.graces({"BERTH_NO_CONTACT_GRACE_S": "1"}) == GracePeriods(600, 300), (
        "a restart takes less"
    )
    for wrong in ("-1", "ten", "1.5"):
        with pytest.raises(Problem, match="not a number"):
            membership_watch.graces({"BERTH_NO_CONTACT_GRACE_S": wrong})


def test_only_the_portal_revokes(
    join: Berth, folder: NodeFolder, doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert join().code == 0
    assert membership_watch.ask_portal(folder) is PortalAnswer.MEMBER
    doors.answer_standing = REVOKED
    assert membership_watch.ask_portal(folder) is PortalAnswer.REVOKED
    doors.answer_standing = (403, problem("identity_replaced", "Replaced."))
    assert membership_watch.ask_portal(folder) is PortalAnswer.REVOKED
    for answer in ((429, problem("join_too_often", "Later.")), (404, {}), (200, {"no": "answer"})):
        doors.answer_standing = answer
        assert membership_watch.ask_portal(folder) in {PortalAnswer.UNCLEAR, PortalAnswer.SILENT}
    doors.answer_standing = (503, problem("storage_full", "No room."))
    assert membership_watch.ask_portal(folder) is not PortalAnswer.REVOKED
    stranger = Doors(tmp_path / "stranger", Authority())
    try:
        stranger.answer_standing = REVOKED
        known = membership.load(folder)
        moved = msgspec.structs.replace(known.answer, portal_url=stranger.url)
        monkeypatch.setattr(membership, "load", lambda _: msgspec.structs.replace(known, answer=moved))
        assert membership_watch.ask_portal(folder) is PortalAnswer.SILENT
    finally:
        stranger.close()


def test_workspaces_are_stopped_once_and_status_shows_the_reason(
    join: Berth, berth: Berth, folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert join().code == 0
    folder.run.mkdir(parents=True, exist_ok=True)
    ended: list[str] = []
    lines: list[str] = []
    left = iter([2, 0, 0])

    def end(environ: dict[str, str]) -> int:
        ended.append(environ["BERTH_NODE_NAME"])
        return next(left)

    monkeypatch.setattr(membership_watch, "end_all", end)
    watch = MembershipWatch(folder, {}, GracePeriods(), lines.append)
    began = time.monotonic() - 700
    for at in (0, 60, 120):
        watch.handle(PortalAnswer.REVOKED, now_s=began + at)
    assert ended == [] and len(lines) == 1 and "workspaces stop after 10 min, homes stay" in lines[0]
    # The services restart meanwhile: the time keeps running.
    again = MembershipWatch(folder, {}, GracePeriods(), lines.append)
    again.handle(PortalAnswer.REVOKED, now_s=began + 600)
    assert ended == ["b"] and "2 workspaces are still stopping" in lines[-1]
    assert "workspaces stop after" in berth("status").out
    again.handle(PortalAnswer.SILENT, now_s=began + 660)
    assert len(ended) == 2 and "were stopped" in lines[-1]
    said = len(lines)
    again.handle(PortalAnswer.SILENT, now_s=began + 720)
    assert len(lines) == said, "and no more is said of it"
    assert "workspaces were stopped, homes stay" in berth("status").out
    again.handle(PortalAnswer.MEMBER, now_s=began + 780)
    assert lines[-1] == "The portal answers again." and membership_watch.load_cut_off(folder) is None


def test_damaged_file_counts_as_missing(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path)
    folder.run.mkdir(parents=True)
    (folder.run / "cut-off.json").write_text("{")
    assert membership_watch.load_cut_off(folder) is None


def test_leave_lists_workspaces_and_stops_them_on_request(
    join: Berth, berth: Berth, folder: NodeFolder, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert join().code == 0
    monkeypatch.setattr("provisioning.host.leaving.POLL_INTERVAL_S", 0.01)
    there = {"placed": 2, "workspaces": ["vision/alice/paper\x1b[2J", "vision/bob/run"]}
    doors.answer_leave = (409, problem("node_has_workspaces", "2 workspaces are placed on b."))
    doors.answer_standing = (200, there)
    done = berth("leave")
    assert done.code == 1 and "vision/alice/paper" in done.err and "vision/bob/run" in done.err
    assert "--drain" in done.err and "--stop" in done.err and "\x1b" not in done.err
    assert folder.state_file.exists()
    with pytest.raises(SystemExit):
        berth("leave", "--drain", "--stop")

    answers = iter([(202, there), (202, there), (204, {})])
    monkeypatch.setattr(
        Doors, "answer_leave", property(lambda _: next(answers), lambda *_: None), raising=False
    )
    done = berth("leave", "--drain")
    assert done.code == 0 and "b has left pool main" in done.out and not folder.state_file.exists()
    assert [body for _, path, body in doors.asked if path == "/nodes/v1/leave"][-3:] == [
        {"workspaces": "drain"}
    ] * 3


def test_leave_wait_has_a_timeout(
    join: Berth, folder: NodeFolder, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert join().code == 0
    doors.answer_leave = (202, {"placed": 1, "workspaces": ["vision/alice/paper"]})
    with pytest.raises(Problem, match="1 workspace is still here: vision/alice/paper"):
        leaving.leave(folder, {}, Console(), forget=False, workspaces="stop", wait_s=-1)
    assert folder.state_file.exists()
