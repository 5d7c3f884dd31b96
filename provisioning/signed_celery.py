"""Celery applications that sign messages, and whose workers run only signed messages.

Both are enforced for every task: sending always goes through `send_task`, and receiving through the task's
strategy before anything runs.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from celery import Celery, Task, current_task
from celery.worker import strategy as celery_strategy
from msgspec import Meta

from provisioning import signing
from provisioning.celery_config import CONTROL_QUEUE
from provisioning.envelopes import Undecodable
from provisioning.signing import (
    ANSWER_MAX_AGE_S,
    CONTROL,
    LEEWAY_S,
    Keys,
    MessageRefused,
    Refusal,
    ReplayGuard,
    Short,
    Signer,
)

log = logging.getLogger(__name__)

STAMP = "berth_stamp"
SENDER = "berth_sender"
SEALED = "reply"
REPORT_EVERY_S = 60.0
KEYS_FRESH_S = 10.0
"""How long a worker caches the keys: a key may have been revoked since."""
REFUSED_TASK = "control.message_refused"
VERIFIED = frozenset({Refusal.TOO_OLD, Refusal.FUTURE, Refusal.NOT_ALLOWED, Refusal.REPEATED})
"""Reasons for which the sender of a rejected message is verified."""


@dataclass(frozen=True, slots=True)
class RefusedReport:
    """A worker's report of rejected messages: `count` for one reason, and the task of the last one.

    `claimed` is the claimed sender, `queue` the one where the messages were. `off_s` is the difference
    between the message's time and the worker's.
    """

    claimed: Short
    reason: Short
    queue: Short
    task: Short
    count: Annotated[int, Meta(ge=0, le=10**9)]
    off_s: Annotated[float, Meta(ge=-1e11, le=1e11)]


@dataclass(frozen=True, slots=True)
class Identity:
    """An application's identity and trusted keys. `keys` reads the keys on each call."""

    name: str
    key: Callable[[], str]
    keys: Callable[[], Keys]
    queues: Callable[[], Collection[str]]
    """Queues that it consumes: messages addressed to another queue are rejected."""


class SignedTask(Task):  # type: ignore[misc]
    """A task that runs only for signed messages; for messages of nodes only if declared `from_nodes`."""

    Strategy = "provisioning.signed_celery:strategy"
    abstract = True
    from_nodes = False


class SignedCelery(Celery):  # type: ignore[misc]
    """A Celery application that signs its messages as `identity`."""

    task_cls = SignedTask

    def __init__(self, main: str, *, identity: Identity, **options: Any) -> None:
        super().__init__(main, **options)
        self.identity = identity
        self.gate = MessageGate(identity)
        self._signer: Signer | None = None
        self.conf.worker_consumer = "provisioning.signed_consumer:Consumer"

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send a signed task. Raises `ValueError` without a key."""
        queue = str(options.get("queue") or self.conf.task_default_queue)
        body = [list(args or ()), dict(kwargs or {})]
        stamp = self._own_signer().stamp(name, queue, body, now=time.time())
        headers = {**(options.pop("headers", None) or {}), STAMP: stamp}
        return super().send_task(name, args, kwargs, headers=headers, **options)

    def seal(self, body: Any, *, key: str) -> str:
        """Return a signed body to store under a Redis key. Raises `ValueError` without a key."""
        stamp = self._own_signer().stamp(SEALED, key, body, now=time.time())
        return json.dumps({"body": body, "stamp": stamp})

    def unseal(self, raw: bytes, *, key: str) -> tuple[str, Any]:
        """Return the sender and body of a value made by `seal` for this key. Raises `MessageRefused`."""
        try:
            envelope = json.loads(raw)
            body, stamp = envelope["body"], envelope["stamp"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise MessageRefused(Refusal.UNSIGNED) from None
        sealed = signing.check(stamp, task=SEALED, body=body, to=(key,), keys=self.identity.keys())
        return sealed.sender, body

    def drop_undecodable(self, queue: str, error: Undecodable) -> None:
        """Count and report an envelope in `queue` that the transport has dropped."""
        self.gate.note(self, MessageRefused(Refusal.UNDECODABLE), str(error), queue=queue)

    def _own_signer(self) -> Signer:
        if self._signer is None:
            self._signer = Signer(self.identity.name, self.identity.key())
        return self._signer


@dataclass
class MessageGate:
    """Decides in a worker's main process which messages are accepted."""

    identity: Identity
    refused: Counter[str] = field(default_factory=Counter)
    """Number of rejected messages since the worker started, by reason."""
    _replay_guard: ReplayGuard = field(default_factory=ReplayGuard)
    _keys: Keys = field(default_factory=dict)
    _read_at: float = float("-inf")
    _reported_at: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _unreported: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def admit(self, headers: dict[str, Any], payload: Any, *, from_nodes: bool) -> str:
        """Verify a message and return its sender. Raises `MessageRefused`."""
        body = _body_of(headers, payload)
        stamp, task = headers.get(STAMP), str(headers.get("task"))
        queues = self.identity.queues()
        if time.monotonic() - self._read_at >= KEYS_FRESH_S:
            self._read_keys()
        try:
            verified = signing.check(stamp, task=task, body=body, to=queues, keys=self._keys)
        except MessageRefused as refused:
            if refused.reason not in {Refusal.UNKNOWN_SENDER, Refusal.FORGED}:
                raise
            # The node may be new, or its key may have changed since the last read.
            self._read_keys()
            verified = signing.check(stamp, task=task, body=body, to=queues, keys=self._keys)
        now = time.time()
        if verified.sender == self.identity.name == CONTROL:
            return CONTROL
        if verified.sender == CONTROL:
            signing.check_age(verified, now=now, max_age_s=LEEWAY_S)
            self._replay_guard.once(verified, now=now)
        elif not from_nodes or headers.get("eta"):
            raise MessageRefused(Refusal.NOT_ALLOWED, verified.sender)
        else:
            # Redelivery is possible because workers may be killed: leases and rows decide whether it still
            # counts.
            signing.check_age(verified, now=now, max_age_s=ANSWER_MAX_AGE_S)
        return verified.sender

    def _read_keys(self) -> None:
        """Reload the keys. On failure the cached ones stay valid: each task checks its sender again."""
        try:
            self._keys = self.identity.keys()
            self._read_at = time.monotonic()
        except Exception as error:
            log.error("could not read keys of message senders: %s", error)

    def note(self, app: Celery, refused: MessageRefused, task: str, *, queue: str) -> None:
        """Count a rejection; log and report it once a minute per verified sender, reason and queue.

        `task` of an undecodable message says what is wrong with it.
        """
        self.refused[refused.reason.value] += 1
        sender = refused.sender[:120]
        # A sender that is only claimed could be another one each time.
        key = (sender if refused.reason in VERIFIED else "", refused.reason.value, queue)
        self._unreported[key] += 1
        now = time.monotonic()
        if now - self._reported_at.get(key, float("-inf")) < REPORT_EVERY_S:
            return
        self._reported_at[key] = now
        count = self._unreported.pop(key)
        log.warning(
            "dropped %d messages from queue %s (%s). Last: %s, sender %s, %.0f s off. "
            "%d since this worker started",
            *(
                count,
                _shortened(queue),
                refused.reason.value,
                _shortened(task),
                _shortened(sender or "unknown"),
            ),
            *(refused.off_s, sum(self.refused.values())),
        )
        report = RefusedReport(
            *(_shortened(sender), refused.reason.value, _shortened(queue), _shortened(task), count),
            round(refused.off_s, 1),
        )
        try:
            app.send_task(REFUSED_TASK, kwargs={"report": asdict(report)}, queue=CONTROL_QUEUE, expires=3600)
        except Exception as error:
            log.warning("could not report dropped messages: %s", error)


def strategy(task: SignedTask, app: SignedCelery, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Wrap Celery's default strategy with the gate."""
    handle = celery_strategy.default(task, app, consumer, **options)

    def gated(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
        try:
            if body is not None:
                raise MessageRefused(Refusal.UNSIGNED)  # message protocol 1, which has no headers
            sender = app.gate.admit(message.headers, message.payload, from_nodes=task.from_nodes)
        except MessageRefused as refused:
            queue = str(message.delivery_info.get("routing_key"))
            app.gate.note(app, refused, task.name, queue=queue)
            ack(log, consumer.connection_errors)
            return None
        message.headers[SENDER] = sender
        return handle(message, body, ack, reject, callbacks, **options)

    return gated


def sender() -> str:
    """Return the sender of the running task's message: `control` or `node.<name>`; empty outside a task."""
    return str(current_task.request.get(SENDER) or "") if current_task else ""


def _body_of(headers: dict[str, Any], payload: Any) -> list[Any]:
    """Return the message's arguments. Raises `MessageRefused` if it has callbacks or belongs to a group."""
    well = isinstance(payload, list) and len(payload) == 3 and isinstance(payload[2], dict)
    if not well or any(payload[2].values()) or headers.get("group"):
        raise MessageRefused(Refusal.UNSIGNED)
    return [payload[0], payload[1]]


def _shortened(text: str) -> str:
    return text[:120].encode("unicode_escape").decode()[:200]
