"""The agent inside a workspace: starts the app, tells the portal, ends it.

Standard library only, Python 3.9 or newer; drivers copy or mount it into the workspace and start it as
`python -I -S agent.py CONFIG [LISTENER]`. It must start quickly (people wait for it), so what is heavy is
imported only after the app has been started.

LISTENER is a listening Unix socket that the driver has made and passed on: where it is given, nothing else
leads to the app. `relay.py`, which has to lie beside this file, joins its connections to the app's port,
unless the app takes them itself, as one that was started ahead of time may.

CONFIG is a JSON file (mode 0600) with these keys; those marked * have a default:

  argv, env            the app; `{port} {home} {token} {token_file} {name}` are replaced in both
  ports                candidate TCP ports on 127.0.0.1; the first free one is taken
  ready_path, activity*   HTTP path that answers below 500 when ready; `jupyter` and `marimo` read kernels
  endpoint*            where the app answers, as reported to the portal; `{port}` replaced
  home, name, app_token, workspace_id, generation
  agent_url            the portal: `http://…`, or `unix:/path` of a socket
  agent_token, heartbeat_s*      the token of this start
  start_timeout_s*, stop_timeout_s*
  state_path, log_path, log_max_bytes*      what the driver reads; the log keeps one old file
  devices*             UUIDs of the granted GPUs
  packages*            where packages of the user's own go (`packages_overlay.make`, beside this file)
  remove_config*       true: delete CONFIG once it has been read, because it holds tokens
  secrets*             true: ask the portal for the workspace's secrets before the app is started, and give it
                       them as variables, or as files in `secrets_dir`*, a folder to make in memory
  checkouts*           repositories to clone beside the app (`checkouts.py`, beside this file); `git_dir`* is
                       a folder to make in memory for Git's settings and credentials, `known_hosts`* keys of
                       hosts of SSH, `egress`* what may be reached

Run as `python -I -S agent.py --unclaimed CLAIM_FD OWNER_FD LISTENER FOLDER PROGRAM [ARGUMENT…]` it starts
PROGRAM, which imports an app ahead of time (`apps/app_host.py`), before it knows of any workspace. It waits
for one connection on CLAIM_FD, a listening socket, says `yours`, and reads CONFIG (and `rlimits`*) from it
as one line; from then on it is the agent of that workspace, and PROGRAM its app. It ends when the process
of the pidfd OWNER_FD ends before a connection has come, when a connection closes without CONFIG, and when
PROGRAM ends. FOLDER gets a state file.

Values of secrets are in this process and in the app, and in no file but those of `secrets_dir`.

The state file is `{"phase": unclaimed|starting|ready|exited, "reason", "exit_code", "port", "generation"}`.
Exit codes of the agent: 0 ended on request or with its app, 64 bad configuration, 75 no port free.
"""

# pathlib, contextlib and typing would double the time that this program takes to start, and it runs on
# older versions of Python too.
# ruff: noqa: PTH100, PTH101, PTH103, PTH105, PTH108, PTH113, PTH115, PTH118, PTH120, PTH123, PTH208, SIM105, UP031, S606

from __future__ import annotations

import _socket  # the C part alone: `socket` costs 7 ms before the app starts
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import http.client
    import threading
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    Config = dict[str, Any]
    Table = dict[int, tuple[int, str, int, int, int, int, int]]

EXIT_CONFIG = 64
EXIT_PORT_TAKEN = 75
TAIL_LINES = 50
TAIL_BYTES = 16384
PROBE_FIRST_S = 0.015
PROBE_MAX_S = 0.1
BACKOFF_MAX_S = 15.0
MAX_ITEMS = 10000  # kernels or terminals that are counted
MAX_STAMP = 40  # characters of a time
MAX_SESSIONS = 50  # notebooks of marimo that are asked for
TTY_MAJORS = range(136, 144)  # of pseudo-terminals
WORKERS = (b"multiprocessing", b"loky")
"""In the command lines of processes that a program keeps beside itself, with work and without."""
ADAPTER = b"debugpy/adapter"
"""Of the process that stays beside a kernel once a debugger was attached. Who stands in one is busy."""
GPU_DEADLINE_S = 2.0
CONTROL_TIMEOUT_S = 1.0
SECRETS_TIMEOUT_S = 30.0  # for how long the portal is asked for secrets
MASKED_LINES = 100  # a value of more is taken out as a whole only
MASKED_MIN = 8  # what is shorter is too common a text to take it out of the log
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------------------------------------
# Configuration and the start of the app
# ---------------------------------------------------------------------------------------------


def load_config(path: str) -> Config:
    """The configuration with its defaults. Raises `ValueError` that names what is missing."""
    with open(path, encoding="utf-8") as handle:
        config: Config = json.load(handle)
    complete(config)
    if config.get("remove_config"):
        try:
            os.unlink(path)
        except OSError:
            pass  # mounted read-only: its owner removes it
    return config


def complete(config: Config) -> None:
    """Put in the defaults. Raises `ValueError` that names what is missing."""
    for key in (
        "argv",
        "ports",
        "home",
        "name",
        "workspace_id",
        "generation",
        "agent_url",
        "agent_token",
        "app_token",
        "state_path",
        "log_path",
    ):
        if key not in config:
            raise ValueError("the agent's configuration lacks “%s”" % key)
    if not config["argv"] or not config["ports"]:
        raise ValueError("the agent's configuration has an empty argv or no ports")
    config.setdefault("env", {})
    config.setdefault("ready_path", "/")
    config.setdefault("activity", "")
    config.setdefault("endpoint", "http://127.0.0.1:{port}")
    config.setdefault("heartbeat_s", 15)
    config.setdefault("start_timeout_s", 120)
    config.setdefault("stop_timeout_s", 10)
    config.setdefault("log_max_bytes", 10 * 1024 * 1024)
    config.setdefault("devices", [])
    config.setdefault("rlimits", {})
    config.setdefault("secrets", False)
    config.setdefault("secrets_dir", "")
    config["secret_env"] = {}
    config.setdefault("packages", None)
    config.setdefault("checkouts", [])
    config.setdefault("git_dir", "")
    config.setdefault("known_hosts", [])
    config.setdefault("egress", "open")
    config["git_credentials"] = []


def make_overlay(config: Config) -> None:
    """Have the folder of the user's own packages ready. An app starts without it where that fails."""
    if not config["packages"]:
        return
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    try:
        import packages_overlay  # type: ignore[import-not-found,unused-ignore]

        packages_overlay.make(**config["packages"])
    except (ImportError, OSError) as error:
        config["env"].pop("VIRTUAL_ENV", None)
        sys.stderr.write("no packages of the user's own: %s\n" % error)
    finally:
        sys.path.remove(here)


def configure_git(config: Config) -> None:
    """Have Git's settings and credentials ready for the app and the clones, where there is memory for them.

    Nothing of it is in the home. What cannot be made is said where the repository is cloned.
    """
    if not config["checkouts"]:
        return
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    given = {each.get("what", ""): each for each in config["git_credentials"]}
    try:
        if not config["git_dir"]:
            raise OSError("there is no memory of its own without a sandbox")
        import checkouts  # type: ignore[import-not-found,unused-ignore]

        usable = [each for each in given.values() if not each.get("problem")]
        path = checkouts.configure(config["git_dir"], usable, config["known_hosts"])
        config["secret_env"]["GIT_CONFIG_SYSTEM"] = path
        for item in config["checkouts"]:
            item["problem"] = given.get(item["what"], {}).get("problem", "")
    except (ImportError, OSError, KeyError) as error:
        sys.stderr.write("no settings of Git: %s\n" % error)
        for item in config["checkouts"]:
            item["problem"] = "no_place" if item["credential"] else ""
    finally:
        sys.path.remove(here)


def git_credentials(answer: Any) -> list[Config]:
    """The credentials for repositories in the portal's answer, as `checkouts.configure` takes them."""
    found: list[Config] = []
    given = answer.get("git") if isinstance(answer, dict) else None
    for each in given if isinstance(given, list) else ():
        if isinstance(each, dict) and all(isinstance(value, str) for value in each.values()):
            found.append(each)
    return found


def free_port(candidates: list[int]) -> int | None:
    """The first of `candidates` on which 127.0.0.1 can be bound, or None."""
    for port in candidates:
        sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        try:
            sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            return port
        except OSError:
            continue
        finally:
            sock.close()
    return None


def write_atomically(path: str, data: bytes) -> None:
    """Replace `path` by `data` (bytes) in one step, readable by its owner only."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)


def substitute(text: str, values: dict[str, str]) -> str:
    """`text` with each `{key}` of `values` replaced; every other brace stays as it is."""
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    return text


def find_program(name: str, search_path: str) -> str | None:
    """The path of an executable, or None."""
    if "/" in name:
        return name if os.access(name, os.X_OK) else None
    for folder in search_path.split(os.pathsep):
        candidate = os.path.join(folder or ".", name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


class App:
    """The started app: its process, its port and the read end of its output."""

    def __init__(self, pid: int, port: int, output: int) -> None:
        self.pid = pid
        self.port = port
        self.output = output
        self.exit_code: int | None = None  # a signal n counts as 128 + n


def filled_in(config: Config, port: int) -> tuple[list[str], dict[str, str]]:
    """The app's command and environment with their placeholders replaced. Raises `OSError`."""
    values = {"port": str(port), "home": config["home"], "name": config["name"], "token": config["app_token"]}
    if any("{token_file}" in text for text in [*config["argv"], *config["env"].values()]):
        token_file = os.path.join(os.path.dirname(config["state_path"]), "app-token")
        write_atomically(token_file, config["app_token"].encode())
        values["token_file"] = token_file
    argv = [substitute(argument, values) for argument in config["argv"]]
    env = {key: substitute(value, values) for key, value in config["env"].items()}
    env.update(config["secret_env"])  # as they are: a brace in a secret is a brace
    return argv, env


def start_app(config: Config, port: int) -> App:
    """Fork and execute the app in a process group of its own. Raises `OSError` with the reason."""
    argv, env = filled_in(config, port)
    program = find_program(argv[0], env.get("PATH", os.defpath))
    if program is None:
        raise FileNotFoundError("the program “%s” is not installed in this environment" % argv[0])
    return execute(program, argv, env, config["home"], port)


def execute(program: str, argv: list[str], env: dict[str, str], folder: str, port: int) -> App:
    """`start_app` with everything known."""
    output_read, output_write = os.pipe()
    status_read, status_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_app(program, argv, env, folder, output_write, status_write)
    os.close(output_write)
    os.close(status_write)
    error = os.read(status_read, 4096)  # empty as soon as the program has been executed
    os.close(status_read)
    if error:
        os.waitpid(pid, 0)
        os.close(output_read)
        raise OSError(error.decode("utf-8", "replace"))
    return App(pid, port, output_read)


def _become_app(
    program: str, argv: list[str], env: dict[str, str], home: str, output_write: int, status_write: int
) -> None:
    """In the child: never returns."""
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output_write, 1)
        os.dup2(output_write, 2)
        try:
            # Where memory runs out the kernel takes the app before the agent, which can tell why.
            descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(descriptor, b"300")
            os.close(descriptor)
        except OSError:
            pass
        os.umask(0o022)
        os.chdir(home)
        os.execve(program, argv, env)
    except BaseException as error:
        os.write(status_write, ("%s: %s" % (program, error)).encode()[:4096])
    finally:
        os._exit(127)


class Unclaimed:
    """An app's program, started ahead of time, and the wait for the workspace that takes it over."""

    def __init__(self, claims: int, owner: int, folder: str, command: list[str]) -> None:
        import socket

        self.listener = socket.socket(fileno=claims)
        self.owner = owner
        self.folder = folder
        # The agent's own end must not reach the program; the other one must.
        self.control, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        argv = [argument.replace("{control}", str(theirs.fileno())) for argument in command]
        env = {key: value for key, value in os.environ.items() if key != "BERTH_ROLE"}
        self.app = execute(argv[0], argv, env, "/", 0)
        theirs.close()

    def wait(self) -> Config | None:
        """The configuration of the workspace that has taken this over; None when there will be none."""
        import select

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
        # Other processes of the sandbox's program may hold copies of this socket, so closing is not enough.
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
                pass  # who asked has died since; the workspace is written down and runs
        return config

    def become(self, config: Config, port: int, listener: int) -> App:
        """Have the program be the app of `config`, with a copy of `listener`. Raises `OSError`."""
        import socket

        argv, env = filled_in(config, port)
        claim = {"argv": argv, "env": env, "home": config["home"], "rlimits": config["rlimits"]}
        text = json.dumps(claim).encode() + b"\n"
        # With the first bytes; what a full buffer has left over follows.
        sent = socket.send_fds(self.control, [text], [listener]) if listener >= 0 else 0
        if sent < len(text):
            self.control.sendall(text[sent:])
        self.app.port = port
        return self.app

    def listening(self) -> bool | None:
        """Whether the app answers on the listener itself; None where it has not said yet. Does not wait."""
        self.control.setblocking(False)
        try:
            return self.control.recv(64) == b"listening\n"
        except BlockingIOError:
            return None
        except OSError:
            return False

    def connections(self) -> int | None:
        """How many connections the app has on the listener, by its own count; None where it does not tell."""
        try:
            self.control.settimeout(CONTROL_TIMEOUT_S)
            self.control.sendall(b"?")
            return int(self.control.recv(64).rpartition(b"\n")[0].rpartition(b"\n")[2])
        except (OSError, ValueError):
            return None


# ---------------------------------------------------------------------------------------------
# Secrets
# ---------------------------------------------------------------------------------------------


def unpacked(answer: Any) -> list[tuple[str, str, str]] | None:
    """Name, kind and value of each secret in the portal's answer; None for what is no such answer."""
    found: list[tuple[str, str, str]] = []
    try:
        for each in answer["secrets"]:
            name, kind, value = str(each["name"]), str(each["kind"]), str(each["value"])
            if not (name.isascii() and name.isidentifier()) or kind not in ("env", "file") or "\0" in value:
                return None
            found.append((name, kind, value))
    except (KeyError, TypeError):
        return None
    return found


def place_secrets(found: list[tuple[str, str, str]], folder: str) -> dict[str, str]:
    """The variables that the app gets; what is a file is written below `folder`. Raises `OSError`."""
    env = {name: value for name, kind, value in found if kind == "env"}
    files = [(name, value) for name, kind, value in found if kind == "file"]
    if files:
        os.makedirs(folder, 0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        for name, value in files:
            path = os.path.join(folder, name)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
            with open(descriptor, "wb") as handle:
                handle.write(value.encode())
        os.chmod(folder, 0o500)
        env["BERTH_SECRETS_DIR"] = folder
    return env


# ---------------------------------------------------------------------------------------------
# The log: size-capped, one old file, no token in it
# ---------------------------------------------------------------------------------------------


class Log:
    """Copies the app's output to a file. A full disk loses lines, never the app."""

    def __init__(self, path: str, max_bytes: int, tokens: list[str]) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.hidden: list[tuple[bytes, bytes]] = []
        self.hide(tokens, b"[token]")
        self.pending = b""
        self.descriptor = -1
        self.size = 0
        self.begins = 0  # how many bytes were written before this file
        self.marked = False

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = os.open(self.path, flags, 0o600)
        self.size = os.fstat(self.descriptor).st_size
        self.marked = False

    def _mark(self) -> None:
        """Say at which position the present file begins, and which one that is, for who reads on."""
        beside = self.path + ".start"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(beside + ".new", flags, 0o600)
            try:
                os.write(descriptor, b"%d %d\n" % (os.fstat(self.descriptor).st_ino, self.begins))
            finally:
                os.close(descriptor)
            os.replace(beside + ".new", beside)
            self.marked = True
        except OSError:
            pass  # a full disk: with what is written next it is tried again

    def hide(self, values: list[str], shown: bytes) -> None:
        """Write `shown` for each of these from now on, and for each line of one that has some."""
        lines = [value.splitlines() for value in values]
        parts = {*values, *(value.strip() for value in values)}
        parts.update(line for each in lines if len(each) <= MASKED_LINES for line in each)
        known = {part for part, _shown in self.hidden}
        encoded = {part.encode() for part in parts} - known
        self.hidden += [(part, shown) for part in encoded if len(part) >= MASKED_MIN]
        # The longest first: a shorter one may be a part of it.
        self.hidden.sort(key=lambda pair: -len(pair[0]))

    def feed(self, data: bytes, last: bool = False) -> None:
        """Write `data` without what is hidden, holding back what may be the beginning of that."""
        data = self.pending + data
        for part, shown in self.hidden:
            data = data.replace(part, shown)
        held = 0
        if not last:
            for part, _shown in self.hidden:
                held = max(held, overlap(data, part))
        self.pending = data[len(data) - held :]
        self._write(data[: len(data) - held])

    def _write(self, data: bytes) -> None:
        try:
            if self.descriptor < 0:
                self._open()
            if self.size and self.size + len(data) > self.max_bytes:
                os.close(self.descriptor)
                self.descriptor = -1
                os.replace(self.path, self.path + ".1")
                self.begins += self.size
                self._open()
            if self.begins and not self.marked:
                self._mark()
            while data:
                written = os.write(self.descriptor, data)
                self.size += written
                data = data[written:]
        except OSError:
            pass

    def without_hidden(self, text: str) -> str:
        """`text` without what is hidden."""
        data = text.encode()
        for part, shown in self.hidden:
            data = data.replace(part, shown)
        return data.decode("utf-8", "replace")

    def note(self, text: str) -> None:
        """A line of the agent's own."""
        self.feed(("[berth] %s\n" % text).encode())

    def aside(self, text: str) -> None:
        """Lines of the agent's own, of a thread beside the one that feeds: what that holds back stays so."""
        self._write(
            "".join("[berth] %s\n" % line for line in self.without_hidden(text).splitlines()).encode()
        )

    def tail(self) -> str:
        """The last lines of the log as text."""
        data = b""
        for path in (self.path, self.path + ".1"):
            try:
                with open(path, "rb") as handle:
                    size = handle.seek(0, os.SEEK_END)
                    handle.seek(max(0, size - TAIL_BYTES))
                    data = handle.read() + data
            except OSError:
                continue
            if data.count(b"\n") >= TAIL_LINES:
                break
        lines = data[-TAIL_BYTES:].decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])


def overlap(data: bytes, part: bytes) -> int:
    """How many bytes at the end of `data` are the beginning of `part`, and not all of it."""
    start = max(0, len(data) - len(part) + 1)
    while True:
        start = data.find(part[:1], start)
        if start < 0:
            return 0
        if part.startswith(data[start:]):
            return len(data) - start
        start += 1


# ---------------------------------------------------------------------------------------------
# What the process tree does
# ---------------------------------------------------------------------------------------------


def read_text(path: str) -> str | None:
    """The content of a small file, or None."""
    try:
        with open(path, "rb") as handle:
            return handle.read().decode("utf-8", "replace")
    except OSError:
        return None


def process_table() -> Table:
    """{pid: (parent, state, cpu ticks, resident pages, group, session, terminal)} of this PID namespace."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            text = read_text("/proc/%s/stat" % entry)
            if text:
                fields = text[text.rfind(")") + 2 :].split()
                ticks = int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
                table[int(entry)] = (
                    int(fields[1]),
                    fields[0],
                    ticks,
                    int(fields[21]),
                    int(fields[2]),
                    int(fields[3]),
                    int(fields[4]),
                )
    return table


def descendants(root: int, table: Table) -> list[int]:
    """Live descendants of `root`, whatever their session or group."""
    children: dict[int, list[int]] = {}
    for pid, row in table.items():
        if row[1] not in "ZX":
            children.setdefault(row[0], []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            found.append(child)
            queue.append(child)
    return found


def jobs_of(pids: list[int], table: Table, agent: int, app: int) -> int:
    """How many commands run beside the shells, kernels and the app that they were started from.

    A shell gives each command a process group of its own in its session, in the foreground of a terminal or
    in the background. What a shell has left behind is in a session whose leader is gone, or has come to the
    agent as an orphan: `agent` is its process, and `app` the one that it has started itself. What a kernel
    has started is in its own group.
    """
    own_session = table[agent][5] if agent in table else 0
    found = set()
    for pid in pids:
        row = table[pid]
        group, session = row[4], row[5]
        orphaned = row[0] == agent and pid != app
        left = session not in table or orphaned
        if session == own_session or not (group != session or left):
            continue
        if not (left and ADAPTER in command_line(pid)):
            found.add((session, group))
    kernels = {pid: command for pid in pids if (command := kernel_command(pid, table, app))}
    started = 0
    for pid in pids:
        row = table[pid]
        if row[0] in kernels and row[4:6] == table[row[0]][4:6] and (row[5], row[4]) not in found:
            command = command_line(pid)
            own = command == kernels[row[0]] or any(word in command for word in (*WORKERS, ADAPTER))
            started += bool(command) and not own
    return len(found) + started


def kernel_command(pid: int, table: Table, app: int) -> bytes:
    """The command line of what may be a kernel, else an empty one.

    Jupyter's lead a session; marimo's are processes that Python has made for its server.
    """
    row = table[pid]
    if pid == app:
        return b""
    if row[5] == pid:
        return command_line(pid)
    command = command_line(pid) if row[0] == app else b""
    return command if b"multiprocessing" in command else b""


def command_line(pid: int) -> bytes:
    """The arguments of a process, each with a NUL at its end; empty when it has gone."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as handle:
            return handle.read(65536)
    except OSError:
        return b""


def terminals_of(pids: list[int], table: Table) -> Config | None:
    """Terminals of these processes, and when something was typed or written in one; None when unknown.

    The kernel keeps that time to eight seconds.
    """
    numbers = {table[pid][6] for pid in pids} - {0}
    paths = []
    for number in numbers:
        major, minor = number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00
        if major in TTY_MAJORS:
            paths.append("/dev/pts/%d" % ((major - TTY_MAJORS[0]) * 256 + minor))
    try:
        times = [max(found.st_atime, found.st_mtime) for found in map(os.stat, paths)]
    except OSError:
        return None  # it has closed meanwhile, or is not to be seen from here
    last = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(times))) if times else None
    return {"count": len(times), "last_activity": last}


def sockets_on(port: int) -> tuple[set[str], int] | None:
    """(inodes that listen on `port`, number of established connections), or None when unknown."""
    inodes: set[str] = set()
    established, seen = 0, False
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        text = read_text(path)
        if text is None:
            continue
        seen = True
        for line in text.splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) != port:
                continue
            if fields[3] == "0A":
                inodes.add(fields[9])
            elif fields[3] == "01":
                established += 1
    return (inodes, established) if seen else None


def listens_itself(port: int, pids: list[int]) -> bool | None:
    """False when a process that is not ours listens on `port`; None when that cannot be seen."""
    found = sockets_on(port)
    if found is None or not found[0]:
        return None
    targets = {"socket:[%s]" % inode for inode in found[0]}
    for pid in pids:
        try:
            for name in os.listdir("/proc/%d/fd" % pid):
                try:
                    if os.readlink("/proc/%d/fd/%s" % (pid, name)) in targets:
                        return True
                except OSError:
                    continue
        except OSError:
            continue
    return False


class Gpus:
    """Utilisation and memory of the granted GPUs through NVML; None where it cannot be read.

    A driver may hang for ever in any call. A thread of its own asks it: heartbeats go on without it.
    """

    def __init__(self, uuids: list[str]) -> None:
        self.uuids = list(uuids)
        self.library: Any = None
        self.broken = not self.uuids
        self.thread: threading.Thread | None = None
        self.asked: threading.Event
        self.answered: threading.Event
        self.waits_since = 0.0  # since when a question has been without an answer; 0: none is
        self.answer: list[Config] | None = None

    def _load(self) -> None:
        import ctypes

        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        if self.library.nvmlInit_v2() != 0:
            raise OSError("NVML does not start")

    def sample(self) -> list[Config] | None:
        """A list of {uuid, utilization_percent, memory_used_mib, memory_total_mib}, or None.

        It takes at most `GPU_DEADLINE_S`, and no time while an earlier question is still without an answer.
        """
        if self.broken:
            return None
        if self.thread is None:
            import threading

            self.asked, self.answered = threading.Event(), threading.Event()
            self.thread = threading.Thread(target=self._ask, daemon=True)
            self.thread.start()
        if self.waits_since and not self.answered.is_set():
            return None
        if not self.waits_since:
            self.answered.clear()
            self.waits_since = time.monotonic()
            self.asked.set()
            if not self.answered.wait(GPU_DEADLINE_S):
                return None
        self.waits_since = 0.0
        return self.answer

    def stale_s(self) -> int | None:
        """For how many seconds the driver has not answered; None when it answers."""
        return int(time.monotonic() - self.waits_since) if self.waits_since else None

    def _ask(self) -> None:
        """Thread: ask the driver each time that it is wanted, until it cannot be asked at all."""
        while not self.broken:
            self.asked.wait()
            self.asked.clear()
            try:
                if self.library is None:
                    self._load()
                self.answer = [self._device(uuid) for uuid in self.uuids]
            except (OSError, AttributeError):
                self.broken = True
                self.answer = None
            self.answered.set()

    def _device(self, uuid: str) -> Config:
        import ctypes

        sample: Config = {
            "uuid": uuid,
            "utilization_percent": None,
            "memory_used_mib": None,
            "memory_total_mib": None,
        }
        handle = ctypes.c_void_p()
        if self.library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
            return sample
        rates = (ctypes.c_uint * 2)()
        if self.library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
            sample["utilization_percent"] = int(rates[0])
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        if self.library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
            sample["memory_total_mib"] = int(memory[0]) >> 20
            sample["memory_used_mib"] = int(memory[2]) >> 20
        return sample


# ---------------------------------------------------------------------------------------------
# HTTP: readiness by bare socket, the rest by http.client once the app is on its way
# ---------------------------------------------------------------------------------------------


def answers(port: int, path: str, timeout_s: float) -> bool:
    """True when the app's port answers `path` with a status below 500."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(("127.0.0.1", port))
        request = "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % (path, port)
        sock.sendall(request.encode())
        head = b""
        while b"\r\n" not in head and len(head) < 4096:
            chunk = sock.recv(4096)
            if not chunk:
                break
            head += chunk
        fields = head.split(b"\r\n", 1)[0].split()
        return (
            len(fields) >= 2
            and fields[0].startswith(b"HTTP/")
            and fields[1].isdigit()
            and int(fields[1]) < 500
        )
    except OSError:
        return False
    finally:
        sock.close()


def connection_to(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection for `url`, and the path to ask for. `unix:/socket:/path` goes through a Unix socket."""
    import http.client
    import socket
    from urllib.parse import urlsplit

    if url.startswith("unix:"):
        address, _, path = url[5:].partition(":")

        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.settimeout(self.timeout)
                self.sock.connect(address)

        return Connection("portal", timeout=timeout_s), path or "/"
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    return kind(parts.hostname or "", parts.port, timeout=timeout_s), path


def http_json(
    method: str, url: str, token: str, body: Any, timeout_s: float, more: dict[str, str] | None = None
) -> tuple[int, Any]:
    """(status, decoded answer or None); `more` are headers. Raises `OSError` when there is no answer."""
    import http.client

    connection, path = connection_to(url, timeout_s)
    try:
        headers = {"Accept": "application/json", **(more or {})}
        if token:
            headers["Authorization"] = "Bearer " + token
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        raw = response.read(4 * 1024 * 1024)
        try:
            answer = json.loads(raw) if raw else None
        except (ValueError, RecursionError):
            answer = None
        return response.status, answer
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


def jupyter_activity(port: int, token: str) -> Config:
    """Kernels and terminals as Jupyter Server reports them; None where it does not answer."""
    result: Config = {"kernels": None, "terminals": None}
    for name, path in (("kernels", "/api/kernels"), ("terminals", "/api/terminals")):
        try:
            status, items = http_json("GET", "http://127.0.0.1:%d%s" % (port, path), token, None, 5.0)
        except OSError:
            continue
        if status != 200 or not isinstance(items, list):
            continue
        # Whoever answers on that port is the user's own: what could not be told anyway is not kept.
        items = [item for item in items[:MAX_ITEMS] if isinstance(item, dict)]
        summary: Config = {"count": len(items)}
        stamps = [item.get("last_activity") for item in items]
        stamps = [stamp for stamp in stamps if isinstance(stamp, str) and len(stamp) <= MAX_STAMP]
        summary["last_activity"] = max(stamps) if stamps else None
        if name == "kernels":
            summary["busy"] = sum(1 for item in items if item.get("execution_state") not in ("idle", "dead"))
        result[name] = summary
    return result


def wakeups_of(pids: list[int], table: Table, app: int) -> dict[int, int]:
    """How often the main thread of each kernel of marimo has waited: {pid: number}.

    It moves with each cell that is run, however short, and stays while none is.
    """
    found = {}
    for pid in pids:
        if table[pid][0] == app and b"spawn_main" in command_line(pid):
            status = read_text("/proc/%d/status" % pid) or ""
            number = status.partition("\nvoluntary_ctxt_switches:")[2].partition("\n")[0].strip()
            found[pid] = int(number) if number else -1
    return found


def marimo_activity(port: int, token: str) -> Config:
    """Notebooks that are open in marimo, and how many of them run a cell; None where it does not say."""
    unknown: Config = {"kernels": None}
    base = "http://127.0.0.1:%d/api/" % port
    try:
        status, sessions = http_json("GET", base + "sessions", token, None, 5.0)
        if status != 200 or not isinstance(sessions, dict) or len(sessions) > MAX_SESSIONS:
            return unknown
        busy = 0
        for session in sessions:
            header = {"Marimo-Session-Id": session}
            status, answer = http_json("GET", base + "kernel/status", token, None, 5.0, header)
            state = answer.get("state") if status == 200 and isinstance(answer, dict) else None
            if state not in ("running", "idle", "stopped"):
                return unknown
            busy += state == "running"
    except OSError:
        return unknown
    return {"kernels": {"count": len(sessions), "busy": busy, "last_activity": None}}


# ---------------------------------------------------------------------------------------------
# The agent
# ---------------------------------------------------------------------------------------------


class Agent:
    """One run: start, ready, heartbeats, end. `run` returns the exit code of the process."""

    def __init__(self, config: Config, unclaimed: Unclaimed | None = None, listener: int = -1) -> None:
        self.config = config
        self.unclaimed = unclaimed
        self.listener = listener
        self.relay_pid = 0
        self.lifeline = -1
        self.direct: bool | None = None if unclaimed and listener >= 0 else False  # None: not known yet
        self.app: App = None  # type: ignore[assignment]  # set before any thread runs
        self.ended: threading.Event
        self.wake_read, self.wake_write = -1, -1
        self.log = Log(
            config["log_path"], config["log_max_bytes"], [config["app_token"], config["agent_token"]]
        )
        self.gpus = Gpus(config["devices"])
        self.wakeups: dict[int, int] = {}
        self.woken: str | None = None  # when a heartbeat has seen them change
        self.stop_signal = False
        self.end_reason = ""  # set once, by whoever decides first
        self.ready = False
        self.state_written = False

    # -- state and messages ---------------------------------------------------------------

    def write_state(self, phase: str, **more: Any) -> None:
        """Publish the state to the driver; a full disk is survived and tried again."""
        state: Config = {"phase": phase, "generation": self.config["generation"]}
        state["port"] = self.app.port if self.app else None
        state.update(more)
        try:
            write_atomically(self.config["state_path"], json.dumps(state).encode())
            self.state_written = True
        except OSError:
            self.state_written = False

    def post(self, name: str, body: Config, timeout_s: float = 10.0) -> tuple[int, Any]:
        """The status and answer of a call to the portal; status 0 when it cannot be reached."""
        body = dict(body, workspace_id=self.config["workspace_id"], generation=self.config["generation"])
        url = self.config["agent_url"].rstrip("/")
        url += (":" if url.startswith("unix:") else "") + "/agent/v1/" + name
        try:
            return http_json("POST", url, self.config["agent_token"], body, timeout_s)
        except OSError:
            return 0, None

    def endpoint(self) -> str:
        return str(self.config["endpoint"]).replace("{port}", str(self.app.port))

    def sample(self) -> Config:
        """What the workspace does now; what cannot be read is null, never zero."""
        activity: Config = {
            "kernels": None,
            "terminals": None,
            "connections": None,
            "cpu_seconds": None,
            "rss_mib": None,
            "processes": None,
            "jobs": None,
            "gpus": self.gpus.sample(),
            "gpus_stale_s": self.gpus.stale_s(),
        }
        found = sockets_on(self.app.port)
        if found is not None:
            activity["connections"] = found[1]
        if self.direct and self.unclaimed:
            own = self.unclaimed.connections()
            activity["connections"] = None if found is None or own is None else found[1] + own
        try:
            table = process_table()
            pids = [pid for pid in descendants(os.getpid(), table) if pid != self.relay_pid]
            reaped = os.times()
            ticks = sum(table[pid][2] for pid in pids)
            activity["cpu_seconds"] = round(ticks / CLOCK_TICKS + reaped[2] + reaped[3], 2)
            activity["rss_mib"] = sum(table[pid][3] for pid in pids) * PAGE_BYTES >> 20
            activity["processes"] = len(pids)
            activity["jobs"] = jobs_of(pids, table, os.getpid(), self.app.pid)
            activity["terminals"] = terminals_of(pids, table)
            if self.config["activity"] == "marimo":
                self.notice_wakeups(wakeups_of(pids, table, self.app.pid))
        except (OSError, ValueError, IndexError):
            pass
        if self.config["activity"] == "jupyter":
            activity.update(jupyter_activity(self.app.port, self.config["app_token"]))
        elif self.config["activity"] == "marimo":
            activity.update(marimo_activity(self.app.port, self.config["app_token"]))
            if activity["kernels"] is not None:
                activity["kernels"]["last_activity"] = self.woken
        return activity

    def notice_wakeups(self, found: dict[int, int]) -> None:
        """Keep the time if a kernel has run something since the last heartbeat."""
        if found != self.wakeups:
            self.wakeups = found
            self.woken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    # -- threads --------------------------------------------------------------------------

    def pump(self) -> None:
        """Thread: the app's output to the log until every writer has gone."""
        while True:
            try:
                data = os.read(self.app.output, 65536)
            except OSError:
                break
            if not data:
                break
            self.log.feed(data)
        self.log.feed(b"", last=True)

    def announce(self) -> None:
        """Thread: say where the app will answer, so that the way to it is laid while it starts.

        Tried once: `ready` says it again.
        """
        self.revoked(self.post("launched", {"endpoint": self.endpoint()})[0])

    def report(self) -> None:
        """Thread: wait for readiness, tell the portal, then send heartbeats until the end."""
        if not self.wait_ready():
            return
        wait_s = 0.2
        while not self.ended.is_set():
            status, _ = self.post("ready", {"endpoint": self.endpoint()})
            if 200 <= status < 300:
                break
            if self.revoked(status):
                return
            self.ended.wait(wait_s)
            wait_s = min(wait_s * 2, BACKOFF_MAX_S)
        interval_s = float(self.config["heartbeat_s"])
        while not self.ended.wait(interval_s):
            if not self.state_written:
                self.write_state("ready")
            status, answer = self.post("heartbeat", {"activity": self.sample()})
            if self.revoked(status):
                return
            if status == 200 and isinstance(answer, dict) and isinstance(answer.get("next_s"), (int, float)):
                interval_s = min(max(float(answer["next_s"]), 0.05), 3600.0)

    def wait_ready(self) -> bool:
        """True once the app answers; ends the workspace when it does not in time."""
        deadline = time.monotonic() + self.config["start_timeout_s"]
        pause_s = PROBE_FIRST_S
        started = time.monotonic()
        while not self.ended.is_set():
            if answers(self.app.port, self.config["ready_path"], 5.0):
                pids = descendants(os.getpid(), process_table())
                if listens_itself(self.app.port, pids) is False:
                    self.end("port_taken")
                    return False
                self.ready = True
                self.write_state("ready")
                os.write(self.wake_write, b"x")  # the main thread sees to the way to it
                return True
            if time.monotonic() > deadline:
                self.end("start_timeout")
                return False
            if time.monotonic() - started > 3:
                pause_s = PROBE_MAX_S
            self.ended.wait(pause_s)
        return False

    def revoked(self, status: int) -> bool:
        if status in (401, 403, 410):
            self.end("revoked")
            return True
        return False

    def end(self, reason: str) -> None:
        """Any thread: have the main thread end the workspace for `reason`."""
        if not self.end_reason:
            self.end_reason = reason
        os.write(self.wake_write, b"x")

    # -- the main thread --------------------------------------------------------------------

    def on_term(self, _number: int, _frame: FrameType | None) -> None:
        """Handler of SIGTERM and SIGINT; the wake-up descriptor rouses the main loop."""
        self.stop_signal = True

    def run(self) -> int:
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        signal.signal(signal.SIGTERM, self.on_term)
        signal.signal(signal.SIGINT, self.on_term)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        trouble = self.take_secrets() if self.config["secrets"] else ""
        if trouble:
            self.write_state("exited", reason=trouble, exit_code=None)
            self.post("exited", {"exit_code": None, "log_tail": self.log.tail()})
            return 0
        port = free_port(self.config["ports"])
        if port is None:
            self.write_state("exited", reason="port_taken", exit_code=None)
            return EXIT_PORT_TAKEN
        make_overlay(self.config)
        configure_git(self.config)
        try:
            if self.unclaimed:
                self.app = self.unclaimed.become(self.config, port, self.listener)
            else:
                self.app = start_app(self.config, port)
        except OSError as error:
            self.log.note("the app could not be started: %s" % error)
            self.write_state("exited", reason="exec_failed", exit_code=127)
            self.post("exited", {"exit_code": 127, "log_tail": self.log.tail()})
            return 0
        self.find_way()
        import threading

        self.ended = threading.Event()
        self.write_state("starting")
        cloning = self.start_checkouts() if self.config["checkouts"] else -1
        pump = threading.Thread(target=self.pump, daemon=True)
        pump.start()
        become_subreaper()
        threading.Thread(target=self.announce, daemon=True).start()
        threading.Thread(target=self.report, daemon=True).start()
        if cloning >= 0:
            threading.Thread(target=self.check_out, args=(cloning,), daemon=True).start()
        self.wait_for_end()
        self.ended.set()
        if self.app.exit_code is None:
            self.end_app()
        reason = self.end_reason or ("stopped" if self.stop_signal else "app_exit")
        self.end_rest()
        pump.join(1.0)
        if reason == "start_timeout":
            self.log.note("the app did not answer within %s s" % self.config["start_timeout_s"])
        code = self.app.exit_code
        if reason == "port_taken":
            self.write_state("exited", reason=reason, exit_code=None)
            return EXIT_PORT_TAKEN
        self.write_state("exited", reason=reason, exit_code=code)
        if reason in ("app_exit", "start_timeout"):
            self.post_exited(code)
        return 0

    def take_secrets(self) -> str:
        """Have the portal hand out the secrets of this start; why the app cannot be started, or ""."""
        import select

        self.write_state("starting")
        deadline = time.monotonic() + SECRETS_TIMEOUT_S
        wait_s = 0.1
        while True:
            status, answer = self.post("secrets", {}, 10.0)
            if self.stop_signal:
                return "stopped"
            if status == 200:
                break
            if status in (401, 403, 410):
                return "revoked"
            if 400 <= status < 500 and status not in (408, 429):
                return "secrets_refused"
            if time.monotonic() > deadline:
                return "secrets_unavailable"
            select.select([self.wake_read], [], [], wait_s)
            self.drain()
            wait_s = min(wait_s * 2, 2.0)
        found = unpacked(answer)
        if found is None:
            return "secrets_refused"
        self.config["git_credentials"] = git_credentials(answer)
        secret = [
            each.get(name, "") for each in self.config["git_credentials"] for name in ("password", "key")
        ]
        self.log.hide([*(value for _name, _kind, value in found), *filter(None, secret)], b"[secret]")
        folder = self.config["secrets_dir"]
        if not folder and any(kind == "file" for _name, kind, _value in found):
            return "secrets_need_sandbox"
        try:
            self.config["secret_env"] = place_secrets(found, folder)
        except OSError as error:
            self.log.note("the secrets that are files could not be written: %s" % error)
            return "secrets_refused"
        return ""

    def start_checkouts(self) -> int:
        """Have a process clone what is to be cloned; the end of its output, or -1 where there is none."""
        config = self.config
        _, env = filled_in(config, self.app.port)
        env["BERTH_CHECKOUTS"] = json.dumps(
            {
                "home": config["home"],
                "workspace": str(config["workspace_id"])[:8],
                "egress": config["egress"],
                "items": config["checkouts"],
            }
        )
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkouts.py")
        argv = [sys.executable, "-I", "-S", program]
        try:
            return execute(argv[0], argv, env, config["home"], 0).output
        except OSError as error:
            self.log.note("nothing could be cloned: %s" % error)
            return -1

    def check_out(self, output: int) -> None:
        """Thread: tell the portal what becomes of the clones, and the log, too."""
        with open(output, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    said = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(said, dict):
                    continue
                words = " ".join(
                    str(said[name]) for name in ("what", "state", "code", "commit") if name in said
                )
                if said.get("state") != "cloning" or "percent" not in said:
                    self.log.aside(words)
                if said.get("detail"):
                    said["detail"] = self.log.without_hidden(str(said["detail"]))
                    self.log.aside(said["detail"])
                self.tell_checkout(said)

    def tell_checkout(self, said: Config) -> None:
        """Tried for a while: its end is worth knowing, a step on the way is not."""
        wait_s = 0.2
        for _ in range(6 if said.get("state") not in ("cloning", "installing") else 1):
            status, _answer = self.post("checkout", said)
            if self.revoked(status) or 0 < status < 500 or self.ended.wait(wait_s):
                return
            wait_s *= 2

    def find_way(self) -> None:
        """See whether the app answers on the listener itself, and have a relay where it does not."""
        if self.direct is None and self.unclaimed:
            self.direct = self.unclaimed.listening()
            if self.direct is None and self.ready:
                self.direct = False
        if self.direct is False and not self.relay_pid:
            self.start_relay()  # at first, or because somebody in the workspace has ended it

    def start_relay(self) -> None:
        """Have a process of its own join the listener's connections to the app. It ends with this one."""
        if self.listener < 0:
            return
        lifeline, held = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(lifeline)
            os.close(held)
            self.log.note("the way to the app could not be made: %s" % error)
            return
        if pid == 0:
            relay(self.listener, self.app.port, lifeline)
        os.close(lifeline)
        if self.lifeline >= 0:
            os.close(self.lifeline)
        self.relay_pid, self.lifeline = pid, held

    def wait_for_end(self) -> None:
        """Until the app has ended, a stop was asked for, or a thread gave a reason."""
        import select

        while True:
            self.reap()
            if self.app.exit_code is not None or self.stop_signal or self.end_reason:
                return
            self.find_way()
            awaited = [self.wake_read]
            if self.direct is None and self.unclaimed:
                awaited.append(self.unclaimed.control.fileno())
            select.select(awaited, [], [], 60.0)
            self.drain()

    def drain(self) -> None:
        try:
            while os.read(self.wake_read, 4096):
                pass
        except BlockingIOError:
            pass

    def reap(self) -> None:
        """Collect every ended child, orphans that came to us included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.app.pid:
                self.app.exit_code = (
                    os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                )
            elif pid == self.relay_pid:
                self.relay_pid = 0

    def end_app(self) -> None:
        """Ask the app to end, wait as long as it may take, then insist."""
        signal_group(self.app.pid, signal.SIGTERM)
        if not self.wait_until(lambda: self.app.exit_code is not None, self.config["stop_timeout_s"]):
            signal_group(self.app.pid, signal.SIGKILL)
            self.wait_until(lambda: self.app.exit_code is not None, 5.0)

    def end_rest(self) -> None:
        """End what the app left behind in other sessions (kernels, terminals)."""

        def rest() -> list[int]:
            return descendants(os.getpid(), process_table())

        for number, patience_s in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 2.0), (signal.SIGKILL, 2.0)):
            pids = rest()
            if not pids:
                break
            for pid in pids:
                signal_one(pid, number)
            self.wait_until(lambda: not rest(), patience_s)
        self.reap()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """True once `condition` holds; SIGCHLD wakes it, so that it looks when something ended."""
        import select

        deadline = time.monotonic() + timeout_s
        while True:
            self.reap()
            if condition():
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            select.select([self.wake_read], [], [], min(left_s, 0.5))
            self.drain()

    def post_exited(self, code: int | None) -> None:
        """Tell the portal that the app has ended; it also finds out by itself, so not for ever."""
        body = {"exit_code": code, "log_tail": self.log.tail()}
        wait_s = 0.2
        for _ in range(5):
            status, _answer = self.post("exited", body, 5.0)
            if 0 < status < 500 or self.stop_signal:
                return
            import select

            select.select([self.wake_read], [], [], wait_s)
            self.drain()
            wait_s *= 2


def relay(listener: int, port: int, lifeline: int) -> None:
    """In a child: run `relay.py` with nothing else open, above all not the lock that says we live.

    Never returns.
    """
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        first, second = sorted((listener, lifeline))
        for low, high in ((3, first), (first + 1, second), (second + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(low, high)
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        sys.dont_write_bytecode = True
        import relay as module  # type: ignore[import-not-found]

        module.serve(listener, port, lifeline)
    except BaseException as error:
        os.write(2, ("berth relay: %s\n" % error).encode())
    finally:
        os._exit(0)


def signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except OSError:
        signal_one(pid, number)


def signal_one(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def become_subreaper() -> None:
    """Have orphans of the app come to us, so that none escapes the end and none stays a zombie."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    except (OSError, AttributeError, ImportError):
        pass


def close_on_exec(keep: int = 3) -> None:
    """What the launcher left open (the lock that says we live) must not reach the app."""
    try:
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= keep:
                try:
                    os.set_inheritable(int(name), False)
                except OSError:
                    continue
    except OSError:
        pass


def main(arguments: list[str]) -> int:
    os.umask(0o077)
    close_on_exec()
    if len(arguments) > 6 and arguments[1] == "--unclaimed":
        unclaimed = Unclaimed(int(arguments[2]), int(arguments[3]), arguments[5], arguments[6:])
        claimed = unclaimed.wait()
        return Agent(claimed, unclaimed, int(arguments[4])).run() if claimed else 0
    if len(arguments) not in (2, 3):
        print("usage: agent.py CONFIG [LISTENER]", file=sys.stderr)
        return EXIT_CONFIG
    listener = int(arguments[2]) if len(arguments) == 3 else -1
    try:
        config = load_config(arguments[1])
    except (OSError, ValueError, TypeError) as error:
        print("berth agent: %s" % error, file=sys.stderr)
        return EXIT_CONFIG
    return Agent(config, listener=listener).run()


if __name__ == "__main__":
    code = main(sys.argv)
    sys.stdout.flush()
    os._exit(code)  # threads may still wait for a portal that does not answer
