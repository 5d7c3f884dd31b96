"""Joins each connection of a Unix socket to a TCP port on 127.0.0.1.

Standard library only, Python 3.9 or newer.
The agent runs `serve` in a process of its own for an app that does not take the connections itself. The Unix
socket was made outside the workspace, where only the gateway of the node reaches it; the port is where the
app listens, in the workspace's network. How many bytes it has passed on, in both directions, it adds to a
number that it shares with the agent.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What a Unix socket takes at once; a larger one would be written in two goes.
CHUNK_BYTES = 128 * 1024
# How much one connection is served before the others are looked at.
ROUNDS = 4
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Flow:
    """One direction of a connection: what was read from `source` and is not yet written to `target`.

    The first number of `passed` grows by what was read.
    """

    def __init__(self, source: socket.socket, target: socket.socket, passed: memoryview) -> None:
        self.source = source
        self.target = target
        self.passed = passed
        self.pending = memoryview(b"")
        self.ended = False

    def pump(self, room: memoryview) -> None:
        """Write what is pending, else read into `room` and write.

        Raises `OSError` when the connection is broken.
        """
        if self.pending:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                self.pending = self.pending[self.target.send(self.pending) :]
            return
        for _ in range(ROUNDS):
            if self.ended:
                return
            try:
                size = self.source.recv_into(room)
            except (BlockingIOError, InterruptedError):
                return
            if not size:
                self.ended = True
                self.target.shutdown(socket.SHUT_WR)
                return
            self.passed[0] += size
            try:
                sent = self.target.send(room[:size])
            except (BlockingIOError, InterruptedError):
                sent = 0
            if sent < size:
                self.pending = memoryview(bytes(room[sent:size]))
                return
            if size < len(room):
                return

    def give_up(self) -> None:
        """Nobody is there any more to write to."""
        self.pending = memoryview(b"")
        self.ended = True


class End:
    """One of the two sockets of a connection; `mask` is what is waited for there."""

    other: End
    out: Flow
    into: Flow

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.mask = 0

    def join(self, other: End, passed: memoryview) -> None:
        """Make both of them the ends of one connection."""
        self.other, other.other = other, self
        self.out = other.into = Flow(self.sock, other.sock, passed)
        self.into = other.out = Flow(other.sock, self.sock, passed)

    def quiet(self) -> bool:
        """Whether each end waits for bytes and for nothing else, as nearly always between two requests."""
        out, into = self.out, self.into
        return (
            self.mask == self.other.mask == select.EPOLLIN
            and not (out.ended or into.ended)
            and not (out.pending or into.pending)
        )

    def interest(self) -> int:
        """What to wait for here: bytes to read while none are pending, room while some are."""
        mask = 0 if self.out.pending or self.out.ended else select.EPOLLIN
        if self.into.pending:
            mask |= select.EPOLLOUT
        # A hang-up is told whatever was asked for. While nothing can be done about it, once is enough.
        return mask or select.EPOLLET


class Relay:
    """All connections of one listening socket; `passed` is one number of 64 bits."""

    def __init__(
        self, listener: socket.socket, port: int, lifeline: int, passed: memoryview | None = None
    ) -> None:
        self.listener = listener
        self.port = port
        self.lifeline = lifeline
        self.passed = memoryview(bytearray(8)).cast("Q") if passed is None else passed
        self.poll = select.epoll()
        self.ends: dict[int, End] = {}
        self.accepting = False
        self.room = memoryview(bytearray(CHUNK_BYTES))

    def run(self) -> None:
        """Until the other end of the lifeline has closed."""
        self.poll.register(self.lifeline, select.EPOLLIN)
        self.listener.setblocking(False)
        self.accept(True)
        while self.handle(self.poll.poll()):
            pass

    def handle(self, events: list[tuple[int, int]]) -> bool:
        """Handle what one wait returned. Returns False once the lifeline has closed.

        A new connection is accepted last: it may get the descriptors of one that ended in the same batch, and
        would otherwise receive the events of that one (a hang-up, after which its request was never sent).
        """
        waiting = False
        for descriptor, mask in events:
            end = self.ends.get(descriptor)
            if end is not None:
                self.advance(end, mask)
            elif descriptor == self.lifeline:
                return False
            elif descriptor == self.listener.fileno():
                waiting = True
        if waiting:
            self.welcome()
        return True

    def accept(self, wanted: bool) -> None:
        if wanted and not self.accepting:
            self.poll.register(self.listener.fileno(), select.EPOLLIN)
        elif self.accepting and not wanted:
            self.poll.unregister(self.listener.fileno())
        self.accepting = wanted

    def welcome(self) -> None:
        """Take one connection and join it to the port; where there is no app, it is closed."""
        try:
            near, _ = self.listener.accept()
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                self.accept(False)  # until a connection has ended
            return
        try:
            far = socket.socket()
        except OSError:
            near.close()
            return
        near.setblocking(False)
        far.setblocking(False)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if far.connect_ex(("127.0.0.1", self.port)) not in (0, errno.EINPROGRESS):
            near.close()
            far.close()
            return
        ends = End(near), End(far)
        ends[0].join(ends[1], self.passed)
        for end in ends:
            self.ends[end.sock.fileno()] = end
            self.poll.register(end.sock.fileno(), 0)
        self.watch(ends[0])

    def advance(self, end: End, events: int) -> None:
        """Do what an event at one end says; a flow with nothing to do costs no look."""
        out, into = end.out, end.into
        try:
            if events & select.EPOLLHUP:
                into.give_up()  # nothing can be sent there any more; what it has sent is still read
            elif events & select.EPOLLOUT:
                into.pump(self.room)
            if events & (select.EPOLLIN | select.EPOLLHUP):
                out.pump(self.room)
        except OSError:
            self.drop(end)
            return
        if events & select.EPOLLERR or (out.ended and into.ended and not into.pending):
            self.drop(end)
        elif not end.quiet():
            self.watch(end)

    def watch(self, end: End) -> None:
        for each in (end, end.other):
            mask = each.interest()
            if each.mask != mask:
                each.mask = mask
                self.poll.modify(each.sock.fileno(), mask)

    def drop(self, end: End) -> None:
        for each in (end, end.other):
            self.ends.pop(each.sock.fileno(), None)
            each.sock.close()
        self.accept(True)


def serve(listener: int, port: int, lifeline: int, passed: memoryview | None = None) -> None:
    """Join connections of `listener` to `port` until the write end of the pipe `lifeline` has closed.

    What was passed on is added to `passed`, where somebody wants to know.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sock: Any = socket.socket(fileno=listener)
    Relay(sock, port, lifeline, passed).run()
