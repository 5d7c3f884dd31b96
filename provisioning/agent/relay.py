"""Joins each connection of a Unix socket to a TCP port on 127.0.0.1.

Standard library only, Python 3.9 or newer.
The agent runs `serve` in a process of its own for an app that does not take the connections itself. The Unix
socket was made outside the workspace, where only the gateway of the node reaches it; the port is where the
app listens, in the workspace's network.
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
BROKEN = select.EPOLLERR | select.EPOLLHUP


class Flow:
    """One direction of a connection: what was read from `source` and is not yet written to `target`."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
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
            try:
                sent = self.target.send(room[:size])
            except (BlockingIOError, InterruptedError):
                sent = 0
            if sent < size:
                self.pending = memoryview(bytes(room[sent:size]))
                return
            if size < len(room):
                return


class Pair:
    """A connection of the Unix socket, the one to the port, and the flows between them."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.sockets = (near, far)
        self.flows = (Flow(near, far), Flow(far, near))

    def interest(self, end: socket.socket) -> int:
        """What to wait for on `end`: bytes to read while none are pending, room while some are."""
        mask = 0
        for flow in self.flows:
            if flow.source is end and not flow.pending and not flow.ended:
                mask |= select.EPOLLIN
            if flow.target is end and flow.pending:
                mask |= select.EPOLLOUT
        return mask

    def over(self) -> bool:
        return all(flow.ended and not flow.pending for flow in self.flows)


class Relay:
    """All connections of one listening socket."""

    def __init__(self, listener: socket.socket, port: int, lifeline: int) -> None:
        self.listener = listener
        self.port = port
        self.lifeline = lifeline
        self.poll = select.epoll()
        self.pairs: dict[int, Pair] = {}
        self.masks: dict[int, int] = {}
        self.accepting = False
        self.room = memoryview(bytearray(CHUNK_BYTES))

    def run(self) -> None:
        """Until the other end of the lifeline has closed."""
        self.poll.register(self.lifeline, select.EPOLLIN)
        self.listener.setblocking(False)
        self.accept(True)
        while True:
            for descriptor, events in self.poll.poll():
                if descriptor == self.lifeline:
                    return
                if descriptor == self.listener.fileno():
                    self.welcome()
                elif descriptor in self.pairs:
                    self.advance(self.pairs[descriptor], events)

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
        pair = Pair(near, far)
        for end in pair.sockets:
            self.pairs[end.fileno()] = pair
            self.masks[end.fileno()] = 0
            self.poll.register(end.fileno(), 0)
        self.watch(pair)

    def advance(self, pair: Pair, events: int) -> None:
        try:
            for flow in pair.flows:
                flow.pump(self.room)
        except OSError:
            self.drop(pair)
            return
        # A hang-up with nothing left to read would be told for ever.
        stuck = events & BROKEN and not any(flow.pending for flow in pair.flows)
        if pair.over() or (events & select.EPOLLERR) or (stuck and self.hung_up(pair)):
            self.drop(pair)
        else:
            self.watch(pair)

    def hung_up(self, pair: Pair) -> bool:
        """Whether an end has gone whole, so that nothing can be sent to it either."""
        return any(not self.masks[end.fileno()] & select.EPOLLIN for end in pair.sockets)

    def watch(self, pair: Pair) -> None:
        for end in pair.sockets:
            mask = pair.interest(end)
            if self.masks[end.fileno()] != mask:
                self.masks[end.fileno()] = mask
                self.poll.modify(end.fileno(), mask)

    def drop(self, pair: Pair) -> None:
        for end in pair.sockets:
            self.pairs.pop(end.fileno(), None)
            self.masks.pop(end.fileno(), None)
            end.close()
        self.accept(True)


def serve(listener: int, port: int, lifeline: int) -> None:
    """Join connections of `listener` to `port` until the write end of the pipe `lifeline` has closed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sock: Any = socket.socket(fileno=listener)
    Relay(sock, port, lifeline).run()
