"""Enforces shares of shared GPUs, in a thread of the node's worker beside the sampler.

It uses the sampler's data and does not open NVML itself. A restarted worker counts from its own start, so no
process is ended earlier than announced.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping

from celery import Celery

from provisioning import messages
from provisioning.celery_config import CONTROL_QUEUE
from provisioning.drivers.local import processes, share_guard
from provisioning.drivers.local.driver import LocalDriver
from provisioning.drivers.local.share_guard import ShareHolder, Shares
from provisioning.gpu.outbox import Outbox
from provisioning.gpu.samples import Sample
from provisioning.gpu.shares import OverShare, ShareAction, decide
from provisioning.node.identity import node_name
from provisioning.share_messages import ShareNote, ShareNotes, ShareStep
from provisioning.types import PoolConfig

log = logging.getLogger(__name__)
ROUND_S = 1.0
FRESH_S = 3.0
"""Older samples are not current."""
RENOTIFY_S = 60.0
"""Minimum interval between reports of a workspace that repeatedly exceeds its share."""
MAX_WAITING = 64
MAX_NOTES = 64
Key = tuple[str, int, str]
SIGNALS = {ShareStep.ASKED: signal.SIGTERM, ShareStep.KILLED: signal.SIGKILL}


class ShareNoteSender:
    """Sends notes to the control plane. Raises errors of the broker; the outbox retries."""

    def __init__(self, app: Celery, *, pool_slug: str, node: str) -> None:
        self._app, self._pool_slug, self._node = app, pool_slug, node

    def __call__(self, notes: list[ShareNote]) -> None:
        self._app.send_task(
            "control.apply_share_notes",
            kwargs={"report": messages.dump(ShareNotes(self._pool_slug, self._node, tuple(notes)))},
            queue=CONTROL_QUEUE,
        )


class Guard(threading.Thread):
    """Checks once per second until stopped. `latest` returns the latest samples by UUID."""

    def __init__(
        self,
        shares: Shares,
        latest: Callable[[], Mapping[str, Sample]],
        send: Callable[[list[ShareNote]], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name="gpu-shares", daemon=True)
        self._shares, self._latest, self._clock = shares, latest, clock
        self._outbox: Outbox[ShareNote] = Outbox(send, content="reports of shared GPUs", limit=MAX_WAITING)
        self._end = threading.Event()
        self._over: dict[Key, OverShare] = {}
        self._notified_at: dict[tuple[Key, ShareStep], float] = {}
        self._skip_back: set[Key] = set()

    def run(self) -> None:
        self._outbox.ensure_running(self._end)
        while not self._end.wait(ROUND_S):
            try:
                notes = self.round(time.monotonic())
            except Exception as error:
                # Unreadable values are retried in the next second.
                log.warning("could not check shared GPUs: %s", error)
                continue
            for first in range(0, len(notes), MAX_NOTES):
                self._outbox.put(notes[first : first + MAX_NOTES])

    def stop(self, timeout_s: float) -> None:
        self._end.set()
        self._outbox.wake()
        if self.is_alive():
            self.join(timeout_s)

    def round(self, now: float) -> list[ShareNote]:
        """Take due actions and return the notes to send. Raises `OSError`."""
        holders = self._shares.holders()
        keys = {_key(holder) for holder in holders}
        self._over = {key: over for key, over in self._over.items() if key in keys}
        self._notified_at = {sent: at for sent, at in self._notified_at.items() if sent[0] in keys}
        self._skip_back &= keys
        if not holders:
            return []
        samples = self._latest()
        notes: list[ShareNote] = []
        for uuid in sorted({holder.share.uuid for holder in holders}):
            sample = samples.get(uuid)
            if sample is None or not 0 <= self._clock() - sample.at_s <= FRESH_S:
                continue
            usage = self._shares.usage_by_holder(uuid, holders, sample)
            for holder in holders:
                if holder.share.uuid != uuid or holder.name not in usage:
                    continue
                key = _key(holder)
                over, acts = decide(self._over.get(key), usage[holder.name], now)
                self._over.pop(key, None)
                if over is not None:
                    self._over[key] = over
                    if not acts and over.within_since is None and self._is_renotification_due(key, now):
                        # Nothing is left to end: repeat the report so that it does not lapse.
                        acts = (ShareAction(ShareStep.OVER, usage[holder.name].used_mib or 0),)
                notes += [note for act in acts if (note := self._carry_out(holder, act, now)) is not None]
        return notes

    def _carry_out(self, holder: ShareHolder, act: ShareAction, now: float) -> ShareNote | None:
        """Execute an action; return its note, or None if it was reported recently or nothing was done."""
        name = ""
        if act.process is not None:
            name = processes.name_of(act.process.pid)
            if not processes.send(act.process.identity, SIGNALS[act.step]):
                return None
            self._skip_back.discard(_key(holder))
            log.warning(
                "%s: %s (process %d) of workspace %s uses %d MiB of its %d MiB on %s",
                act.step.value, name, act.process.pid, holder.workspace_id, act.used_mib,
                holder.share.part_mib, holder.share.uuid,
            )  # fmt: skip
        elif not self._should_notify(_key(holder), act.step, now):
            return None
        return ShareNote(
            holder.workspace_id, holder.generation, holder.share.uuid, act.step.value, act.used_mib,
            holder.share.part_mib, name[:80], act.ends_in_s,
        )  # fmt: skip

    def _is_renotification_due(self, key: Key, now: float) -> bool:
        at = self._notified_at.get((key, ShareStep.OVER))
        return at is not None and now - at >= RENOTIFY_S

    def _should_notify(self, key: Key, step: ShareStep, now: float) -> bool:
        """Return whether to report: UNKNOWN once, OVER once a minute, and BACK only after a report."""
        if step is ShareStep.BACK:
            reported = key not in self._skip_back
            self._skip_back.discard(key)
            return reported
        at = self._notified_at.get((key, step))
        if at is not None and (step is ShareStep.UNKNOWN or now - at < RENOTIFY_S):
            self._skip_back.add(key)
            return False
        self._notified_at[key, step] = now
        self._skip_back.discard(key)
        return True


def _key(holder: ShareHolder) -> Key:
    return holder.name, holder.generation, holder.share.uuid


def start(app: Celery, latest: Callable[[], Mapping[str, Sample]]) -> Guard | None:
    """Start a guard of this machine's local pool; return None if the operator disabled GPU sharing."""
    if not share_guard.is_on():
        return None
    shares = LocalDriver(PoolConfig("local", "local")).shares()
    sender = ShareNoteSender(app, pool_slug=os.environ.get("BERTH_NODE_POOL", ""), node=node_name())
    guard = Guard(shares, latest, sender)
    guard.start()
    return guard
