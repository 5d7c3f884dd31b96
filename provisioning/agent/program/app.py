"""The app's process: its port, environment and start."""

# ruff: noqa: PTH113, PTH118, PTH120, S606, UP031

from __future__ import annotations

import _socket  # the C part only: `socket` adds 7 ms before the app starts
import os
import signal

from .state import write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .config import Config


class App:
    """The started app: its process, its port and the read end of its output."""

    def __init__(self, pid: int, port: int, output: int) -> None:
        self.pid = pid
        self.port = port
        self.output = output
        self.exit_code: int | None = None  # a signal n counts as 128 + n


def free_port(candidates: list[int]) -> int | None:
    """Return the first of `candidates` that can be bound on 127.0.0.1, or None."""
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


def substitute(text: str, values: dict[str, str]) -> str:
    """Return `text` with each `{key}` of `values` replaced; other braces stay unchanged."""
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    return text


def find_program(name: str, search_path: str) -> str | None:
    """Return the path of an executable, or None."""
    if "/" in name:
        return name if os.access(name, os.X_OK) else None
    for folder in search_path.split(os.pathsep):
        candidate = os.path.join(folder or ".", name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def command_and_environment(config: Config, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the app's command and environment with placeholders replaced. Raises `OSError`."""
    values = {"port": str(port), "home": config["home"], "name": config["name"], "token": config["app_token"]}
    if any("{token_file}" in text for text in [*config["argv"], *config["env"].values()]):
        token_file = os.path.join(os.path.dirname(config["state_path"]), "app-token")
        write_atomically(token_file, config["app_token"].encode())
        values["token_file"] = token_file
    argv = [substitute(argument, values) for argument in config["argv"]]
    env = {key: substitute(value, values) for key, value in config["env"].items()}
    env.update(config["secret_env"])  # unchanged: braces in secrets are not placeholders
    if config["progress_dir"]:
        env["BERTH_PROGRESS_DIR"] = config["progress_dir"]
    return argv, env


def start_app(config: Config, port: int) -> App:
    """Fork and execute the app in its own process group. Raises `OSError` with the reason."""
    argv, env = command_and_environment(config, port)
    program = find_program(argv[0], env.get("PATH", os.defpath))
    if program is None:
        raise FileNotFoundError("the program “%s” is not installed in this environment" % argv[0])
    return execute(program, argv, env, config["home"], port)


def execute(program: str, argv: list[str], env: dict[str, str], folder: str, port: int) -> App:
    """Fork and execute a program. Raises `OSError`."""
    output_read, output_write = os.pipe()
    status_read, status_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_app(program, argv, env, folder, output_write, status_write)
    os.close(output_write)
    os.close(status_write)
    error = os.read(status_read, 4096)  # empty once the program has been executed
    os.close(status_read)
    if error:
        os.waitpid(pid, 0)
        os.close(output_read)
        raise OSError(error.decode("utf-8", "replace"))
    return App(pid, port, output_read)


def _become_app(
    program: str, argv: list[str], env: dict[str, str], home: str, output_write: int, status_write: int
) -> None:
    """Execute the program in the child; never returns."""
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output_write, 1)
        os.dup2(output_write, 2)
        try:
            # When memory runs out, the kernel kills the app before the agent, which reports the reason.
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
