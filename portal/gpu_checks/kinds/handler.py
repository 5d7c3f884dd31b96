"""Base class of handlers, with everything that depends on the kind of a run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.fleet.inventory.models import Device
from portal.gpu_checks.kinds.looks import RepeatForm, StateBadge
from portal.gpu_checks.models import CheckKind, GpuCheckRun
from portal.workspaces.models import Workspace
from provisioning.check_messages import CheckAnswer, CheckCommand


class KindHandler(Protocol):
    """The behaviour of one kind of run. Handlers have no state.

    Methods with a body are defaults that a kind may override.
    """

    kind: ClassVar[CheckKind]
    noun: ClassVar[str]
    """Noun for such a run in the audit log."""
    alone_on_node: ClassVar[bool] = False
    """Whether such a run needs exclusive use of the driver, so that no other run may be open on its node."""

    trend_kind: ClassVar[CheckKind] = CheckKind.CHECK
    """The kind of earlier runs that the trends show."""
    looks: ClassVar[Mapping[str, StateBadge]] = {}
    """Badges of states and verdicts that differ from the common badges."""
    running_title: ClassVar[str | Promise] = ""
    """Heading while the run is in progress; empty to show its progress."""
    open_text: ClassVar[str | Promise] = ""
    """Text while the run is open; empty to show the current test."""
    peers_open_text: ClassVar[str | Promise] = _("Reserved to measure the links:")
    peers_done_text: ClassVar[str | Promise] = _("Links measured to:")
    simulated_text: ClassVar[str | Promise] = _(
        "This device and its check are simulated. The result says nothing about real hardware."
    )

    def noun_phrase(self, level: str) -> str:
        """Return the noun with its article, as in “asks for … of GPU 0”."""
        return f"a {self.noun}"

    def choose_peers(self, device: Device, level: str) -> list[Device]:
        """Lock and return idle devices to reserve for a run that no workspace waits for.

        The caller holds `PlacementLock`.
        """
        return []

    @abstractmethod
    def deadline_s(self, run: GpuCheckRun) -> float:
        """Return the maximum time of the run on its node, in seconds."""

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        """Return the command for the node with the fields of this kind."""
        return command

    def repeatable(self, run: GpuCheckRun) -> bool:
        """Return whether an open run without an answer may be sent again."""
        return True

    @abstractmethod
    def apply_answer(self, run: GpuCheckRun, answer: CheckAnswer, workspace: Workspace | None) -> None:
        """Apply the answer to a locked, open run of this kind.

        `workspace` is the locked workspace that waits for the run, if any.
        """

    @abstractmethod
    def handle_loss(self, run: GpuCheckRun, reason: str) -> None:
        """Handle the device of a locked run that has just ended without a result."""

    def label(self, run: GpuCheckRun) -> str:
        """Return the short name of a run, shown next to its device."""
        return str(self.kind.label)

    def title(self, run: GpuCheckRun) -> str:
        """Return the title of a run in lists and on its page."""
        return self.label(run)

    def repeat(self, run: GpuCheckRun) -> RepeatForm | None:
        """Return the form to repeat an ended run, or `None` if that is not possible."""
        return None
