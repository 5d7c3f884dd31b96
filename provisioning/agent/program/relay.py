"""Forwards each connection of a Unix socket to a TCP port on 127.0.0.1.

Standard library only, Python 3.9 or newer. The agent runs `serve` in a separate process for an app that does
not accept the connections itself. The Unix socket was created outside the workspace, where only the gateway
of the node can reach it; the app listens on the port, in the workspace's network. The relay adds the bytes
that it forwards, in both directions, to a counter shared with the agent.
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

# Capacity of a Unix socket; larger writes would be split.
CHUNK_BYTES = 128 * 1024
# Reads per connection before other connections are served.
ROUNDS = 4
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Flow:
    """One direction of a connection: data read from `source` that is not yet written to `target`.

    The first element of `passed` counts the bytes read.
    """

    def __init__(self, source: socket.socket, target: socket.socket, passed: memoryview) -> None:
        self.source = source
        self.target = target
        self.passed = passed
        self.pending = memoryview(b"")
        self.ended = False

    def pump(self, room: memoryview) -> None:
        """Write pending data, or else read into `room` and write.

        Raises `OSError` if the connection is broken.
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
                count = self.target.send(room[:size])
            except (BlockingIOError, InterruptedError):
                count = 0
            if count < size:
                self.pending = memoryview(bytes(room[count:size]))
                return
            if size < len(room):
                return

    def give_up(self) -> None:
        """Discard pending data: the target has disconnected."""
        self.pending = memoryview(b"")
        self.ended = True


class End:
    """One of the two sockets of a connection; `mask` is its registered epoll mask."""

    peer: End
    out: Flow
    into: Flow

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.mask = 0

    def join(self, peer: End, passed: memoryview) -> None:
        """Connect both as the ends of one connection."""
        self.peer, peer.peer = peer, self
        self.out = peer.into = Flow(self.sock, peer.sock, passed)
        self.into = peer.out = Flow(peer.sock, self.sock, passed)

    def is_idle(self) -> bool:
        """Return whether both ends only wait for data, the usual state between two requests."""
        out, into = self.out, self.into
        return (
            self.mask == self.peer.mask == select.EPOLLIN
            and not (out.ended or into.ended)
            and not (out.pending or into.pending)
        )

    def epoll_events(self) -> int:
        """Return the epoll mask: read if nothing is pending, write if something is."""
        mask = 0 if self.out.pending or self.out.ended else select.EPOLLIN
        if self.into.pending:
            mask |= select.EPOLLOUT
        # epoll always reports a hang-up. Edge-triggered, it does so once.
        return mask or select.EPOLLET


class Relay:
    """All connections of one listening socket; `passed` is one 64-bit counter."""

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
        """Run until the other end of the lifeline has closed."""
        self.poll.register(self.lifeline, select.EPOLLIN)
        self.listener.setblocking(False)
        self.set_accepting(True)
        while self.handle(self.poll.poll()):
            pass

    def handle(self, events: list[tuple[int, int]]) -> bool:
        """Handle the events of one poll. Return False once the lifeline has closed.

        A new connection is accepted last. It may reuse the descriptors of a connection that ended in the same
        batch, and would otherwise receive that connection's events, such as a hang-up.
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
            self.connect_one()
        return True

    def set_accepting(self, enabled: bool) -> None:
        if enabled and not self.accepting:
            self.poll.register(self.listener.fileno(), select.EPOLLIN)
        elif self.accepting and not enabled:
            self.poll.unregister(self.listener.fileno())
        self.accepting = enabled

    def connect_one(self) -> None:
        """Accept one connection and connect it to the port; close it if there is no app."""
        try:
            near, _ = self.listener.accept()
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                self.set_accepting(False)  # until a connection has ended
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
        """Handle an event at one end; idle flows cost no system calls."""
        out, into = end.out, end.into
        try:
            if events & select.EPOLLHUP:
                into.give_up()  # nothing can be sent any more; pending input is still read
            elif events & select.EPOLLOUT:
                into.pump(self.room)
            if events & (select.EPOLLIN | select.EPOLLHUP):
                out.pump(self.room)
        except OSError:
            self.drop(end)
            return
        if events & select.EPOLLERR or (out.ended and into.ended and not into.pending):
            self.drop(end)
        elif not end.is_idle():
            self.watch(end)

    def watch(self, end: End) -> None:
        for side in (end, end.peer):
            mask = side.epoll_events()
            if side.mask != mask:
                side.mask = mask
                self.poll.modify(side.sock.fileno(), mask)

    def drop(self, end: End) -> None:
        for side in (end, end.peer):
            self.ends.pop(side.sock.fileno(), None)
            side.sock.close()
        self.set_accepting(True)


def serve(listener: int, port: int, lifeline: int, passed: memoryview | None = None) -> None:
    """Forward connections of `listener` to `port` until the write end of the pipe `lifeline` has closed.

    Adds the forwarded bytes to `passed`, if present.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sock: Any = socket.socket(fileno=listener)
    Relay(sock, port, lifeline, passed).run()
