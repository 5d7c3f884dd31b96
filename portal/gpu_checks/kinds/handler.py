"""What every kind of run answers for: the protocol of the handlers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.fleet.inventory.models import Device
from portal.gpu_checks.kinds.looks import Look, Repeat
from portal.gpu_checks.models import CheckKind, GpuCheckRun
from portal.workspaces.models import Workspace
from provisioning.check_messages import CheckAnswer, CheckCommand


class KindHandler(Protocol):
    """Everything in which one kind of run differs from the others. A handler has no state.

    A method with a body here is the rule; a kind that differs overrides it.
    """

    kind: ClassVar[CheckKind]
    noun: ClassVar[str]
    """The name of such a run inside a sentence of the audit log."""
    alone_on_node: ClassVar[bool] = False
    """Whether it needs the driver of its node for itself: no other run is under way there meanwhile."""

    trend_kind: ClassVar[CheckKind] = CheckKind.CHECK
    """The kind of the earlier runs of the device that its figures are drawn with."""
    looks: ClassVar[Mapping[str, Look]] = {}
    """Looks of states and verdicts, where they are not those of all kinds."""
    running_title: ClassVar[str | Promise] = ""
    """The heading while it runs; empty: its progress."""
    open_text: ClassVar[str | Promise] = ""
    """The text while it is open; empty: its present test."""
    simulated_text: ClassVar[str | Promise] = _(
        "This device is simulated, and so is its check: it says nothing about any hardware."
    )

    def described(self, level: str) -> str:
        """The noun with its article, as in “asks for … of GPU 0”."""
        return f"a {self.noun}"

    def choose_peers(self, device: Device, level: str) -> list[Device]:
        """Idle devices to keep free for a run that no workspace waits for, under lock.

        The caller holds `PlacementLock`.
        """
        return []

    @abstractmethod
    def deadline_s(self, run: GpuCheckRun) -> float:
        """How long the node may take, in seconds."""

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        """The command to the node, with what only this kind needs."""
        return command

    def repeatable(self, run: GpuCheckRun) -> bool:
        """Whether an open run that nobody answers for may be sent a second time."""
        return True

    @abstractmethod
    def apply_answer(self, run: GpuCheckRun, answer: CheckAnswer, workspace: Workspace | None) -> None:
        """Take in the answer to a locked, open run of this kind, and act upon it.

        `workspace` is the locked one that waits for the run, if any does.
        """

    @abstractmethod
    def lost(self, run: GpuCheckRun, reason: str) -> None:
        """What follows for the device of a locked run that has just ended without a result."""

    def label(self, run: GpuCheckRun) -> str:
        """The short name of a run, beside its device."""
        return str(self.kind.label)

    def title(self, run: GpuCheckRun) -> str:
        """The name of a run in lists and on its own page."""
        return self.label(run)

    def repeat(self, run: GpuCheckRun) -> Repeat | None:
        """The form that asks for a run again that has ended; None: it cannot be asked for again here."""
        return None
