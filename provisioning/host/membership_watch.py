"""Checks whether this node is still a member of the portal, and ends its workspaces if not.

If the portal reports that the node was revoked, its workspaces end after `BERTH_REVOKED_GRACE_S`; without
contact, after `BERTH_NO_CONTACT_GRACE_S`, if set. Time is the kernel's monotonic clock, which is independent
of clock changes and stops while the machine sleeps. The start is saved in a file with the boot ID, so a
restart of the node's services does not reset it. Homes are kept.
"""

from __future__ import annotations

import enum
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from provisioning.host import membership, programs
from provisioning.host.door import RequestRefused, ResponseLost, Unreachable
from provisioning.host.ending import end_all
from provisioning.host.folder import NodeFolder
from provisioning.host.rotation import MEMBERSHIP_LOST, door_of
from provisioning.service import processes
from provisioning.service.console import Problem
from provisioning.service.files import write_file

REVOKED_GRACE_S = 600
MIN_NO_CONTACT_S = 300
"""Lower limit of the grace period: longer than a restart of the portal."""
POLL_INTERVAL_S = 60.0
MIN_FAILED_CHECKS = 3
"""Number of consecutive equal results before workspaces end."""


class PortalAnswer(enum.StrEnum):
    """Result of a request to the portal."""

    MEMBER = "member"
    REVOKED = "revoked"
    SILENT = "silent"
    UNCLEAR = "unclear"


class CutOff(msgspec.Struct, frozen=True):
    """Loss of membership or contact: its start, in seconds of the monotonic clock of this boot."""

    word: PortalAnswer
    boot: str
    since_s: float
    failed_checks: int = 1
    ended: bool = False


class GracePeriods(msgspec.Struct, frozen=True):
    """Seconds until workspaces end; 0 for never."""

    revoked_s: int = REVOKED_GRACE_S
    no_contact_s: int = 0

    def grace_for(self, answer: PortalAnswer) -> int:
        return self.revoked_s if answer is PortalAnswer.REVOKED else self.no_contact_s


def graces(environ: Mapping[str, str]) -> GracePeriods:
    """Read `BERTH_REVOKED_GRACE_S` and `BERTH_NO_CONTACT_GRACE_S`. Raises `Problem`."""
    seconds = []
    for name, default in (("BERTH_REVOKED_GRACE_S", REVOKED_GRACE_S), ("BERTH_NO_CONTACT_GRACE_S", 0)):
        text = environ.get(name, "").strip()
        if text and not text.isdecimal():
            raise Problem(
                f"{name} is “{text[:40]}”, which is not a number of seconds.", "Correct it in node.env."
            )
        seconds.append(int(text) if text else default)
    revoked_s, silent_s = seconds
    return GracePeriods(revoked_s, max(silent_s, MIN_NO_CONTACT_S) if silent_s else 0)


def ask_portal(folder: NodeFolder) -> PortalAnswer:
    """Ask the portal. Only its own answer, under its authority's certificate, means REVOKED."""
    try:
        door_of(folder, membership.load(folder)).workspaces()
    except RequestRefused as refused:
        return PortalAnswer.REVOKED if refused.code in MEMBERSHIP_LOST else PortalAnswer.UNCLEAR
    except (Unreachable, ResponseLost):
        return PortalAnswer.SILENT
    except Problem:
        return PortalAnswer.UNCLEAR
    return PortalAnswer.MEMBER


def next_cut_off(previous: CutOff | None, answer: PortalAnswer, *, boot: str, now_s: float) -> CutOff | None:
    """Return the state after one more result; None while the node is a member.

    A revoked node stays revoked while it has no contact. An unclear answer counts as contact.
    """
    if previous is not None and previous.boot != boot:
        # No workspace survived the reboot, and the monotonic clock restarted.
        previous = None
    match answer:
        case PortalAnswer.MEMBER:
            return None
        case PortalAnswer.UNCLEAR:
            return previous if previous is not None and previous.word is PortalAnswer.REVOKED else None
        case PortalAnswer.SILENT if previous is not None:
            return msgspec.structs.replace(previous, failed_checks=previous.failed_checks + 1)
        case PortalAnswer.REVOKED if previous is not None and previous.word is PortalAnswer.REVOKED:
            return msgspec.structs.replace(previous, failed_checks=previous.failed_checks + 1)
    return CutOff(answer, boot, now_s)


def is_due(cut_off: CutOff, limits: GracePeriods, *, now_s: float) -> bool:
    """Return whether workspaces have to end now."""
    grace_s = limits.grace_for(cut_off.word)
    return bool(grace_s) and cut_off.failed_checks >= MIN_FAILED_CHECKS and now_s - cut_off.since_s >= grace_s


def load_cut_off(folder: NodeFolder) -> CutOff | None:
    """Return the saved state; None if the node is a member or the file cannot be read."""
    try:
        return msgspec.json.decode(_path(folder).read_bytes(), type=CutOff)
    except (OSError, msgspec.MsgspecError):
        return None


def _path(folder: NodeFolder) -> Path:
    return folder.run / "cut-off.json"


class MembershipWatch:
    """Asks the portal every `POLL_INTERVAL_S` in a thread, and ends workspaces when due."""

    def __init__(
        self,
        folder: NodeFolder,
        environ: Mapping[str, str],
        limits: GracePeriods,
        announce: Callable[[str], None],
    ) -> None:
        self._folder, self._environ, self._limits, self._announce = folder, environ, limits, announce
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="membership", daemon=True)
        self._announced: PortalAnswer | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop asking; a running request is not interrupted."""
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_INTERVAL_S):
            try:
                self.handle(ask_portal(self._folder), now_s=time.monotonic())
            except (Problem, OSError, subprocess.SubprocessError) as error:
                self._announce(f"The contact with the portal could not be checked: {error}")

    def handle(self, answer: PortalAnswer, *, now_s: float) -> None:
        """Process one result. Raises `OSError`, `Problem`, `subprocess.SubprocessError`."""
        previous = load_cut_off(self._folder)
        cut_off = next_cut_off(previous, answer, boot=processes.boot_id(), now_s=now_s)
        if cut_off is None:
            if previous is not None:
                _path(self._folder).unlink(missing_ok=True)
                self._announced = None
                self._announce("The portal answers again.")
            return
        write_file(_path(self._folder), msgspec.json.encode(cut_off).decode())
        if not is_due(cut_off, self._limits, now_s=now_s):
            self._announce_once(cut_off.word, describe(cut_off, self._limits, now_s=now_s))
            return
        remaining = end_all(programs.node_environ(self._folder, membership.load(self._folder), self._environ))
        ended = msgspec.structs.replace(cut_off, ended=not remaining)
        write_file(_path(self._folder), msgspec.json.encode(ended).decode())
        if not cut_off.ended or remaining:
            self._announce(
                f"{remaining} workspaces are still stopping. Retrying."
                if remaining
                else "This node has lost the portal, so its workspaces were stopped. Homes stay."
            )

    def _announce_once(self, answer: PortalAnswer, line: str) -> None:
        """Announce a line once per change."""
        if answer is not self._announced:
            self._announced = answer
            self._announce(line)


def describe(cut_off: CutOff, limits: GracePeriods, *, now_s: float) -> str:
    """Describe the state for people: its cause, its start and its consequence."""
    cause = (
        "The portal no longer has this node"
        if cut_off.word is PortalAnswer.REVOKED
        else "The portal does not answer"
    )
    since = f", for {max(0, now_s - cut_off.since_s) / 60:.0f} min"
    grace_s = limits.grace_for(cut_off.word)
    if cut_off.ended:
        return f"{cause}{since}: workspaces were stopped, homes stay"
    if not grace_s:
        return f"{cause}{since}: workspaces keep running"
    return f"{cause}{since}: workspaces stop after {grace_s / 60:.0f} min, homes stay"
