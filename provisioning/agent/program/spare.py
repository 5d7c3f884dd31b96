"""A spare app process that starts before it is assigned to a workspace."""

# ruff: noqa: SIM105

from __future__ import annotations

import json
import os
import select
import socket

from .app import command_and_environment, execute
from .config import complete
from .state import write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .app import App
    from .config import Config

CONTROL_TIMEOUT_S = 1.0


class Spare:
    """A preloaded app program waiting for the workspace that claims it."""

    def __init__(self, claims: int, owner: int, folder: str, command: list[str]) -> None:
        self.listener = socket.socket(fileno=claims)
        self.owner = owner
        self.folder = folder
        # The program inherits only the other end.
        self.control, child_end = socket.socketpair()
        child_end.set_inheritable(True)
        argv = [argument.replace("{control}", str(child_end.fileno())) for argument in command]
        env = {key: value for key, value in os.environ.items() if key != "BERTH_ROLE"}
        self.app = execute(argv[0], argv, env, "/", 0)
        child_end.close()

    def wait(self) -> Config | None:
        """Return the configuration of the claiming workspace; None if no workspace can claim it any more."""
        poller = select.poll()
        poller.register(self.owner, select.POLLIN)
        poller.register(self.control, select.POLLIN)
        while True:
            events = {descriptor for descriptor, _ in poller.poll()}
            if self.owner in events:
                return None
            if self.control.fileno() in events:
                if not self.control.recv(64):
                    return None  # the program has ended
                state = {"phase": "unclaimed", "generation": 0}
                write_atomically(self.folder + "/state.json", json.dumps(state).encode())
                poller.register(self.listener, select.POLLIN)
            if self.listener.fileno() in events:
                break
        connection, _ = self.listener.accept()
        # Other processes of the program may hold copies of this socket, so closing is not enough.
        self.listener.shutdown(2)
        self.listener.close()
        os.close(self.owner)
        with connection:
            connection.sendall(b"yours\n")
            text = bytearray()
            while not text.endswith(b"\n"):
                data = connection.recv(65536)
                if not data:
                    return None
                text += data
            config: Config = json.loads(text)
            complete(config)
            try:
                connection.sendall(b"taken\n")
            except OSError:
                pass  # the caller has died; the workspace is recorded and runs
        return config

    def become(self, config: Config, port: int, listener: int) -> App:
        """Make the program the app of `config`, passing a copy of `listener`. Raises `OSError`."""
        argv, env = command_and_environment(config, port)
        claim = {"argv": argv, "env": env, "home": config["home"], "rlimits": config["rlimits"]}
        text = json.dumps(claim).encode() + b"\n"
        # The descriptor is sent with the first bytes; send the rest if the buffer was full.
        count = socket.send_fds(self.control, [text], [listener]) if listener >= 0 else 0
        if count < len(text):
            self.control.sendall(text[count:])
        self.app.port = port
        return self.app

    def listening(self) -> bool | None:
        """Return whether the app accepts connections itself; None if unknown yet. Does not block."""
        self.control.setblocking(False)
        try:
            return self.control.recv(64) == b"listening\n"
        except BlockingIOError:
            return None
        except OSError:
            return False

    def connection_counts(self) -> tuple[int | None, int | None]:
        """Return the app's number of connections on the listener, and of bytes transferred there.

        None for both if the app does not answer.
        """
        try:
            self.control.settimeout(CONTROL_TIMEOUT_S)
            self.control.sendall(b"?")
            connections, traffic = self.control.recv(64).rpartition(b"\n")[0].rpartition(b"\n")[2].split()
            return int(connections), int(traffic)
        except (OSError, ValueError):
            return None, None
