"""Classification of command lines: programs that are not work by themselves."""

from __future__ import annotations

WORKERS = (b"multiprocessing", b"loky")
"""Command lines of worker processes that a program keeps even when idle."""
ADAPTER = b"debugpy/adapter"
"""Command line of the process that remains beside a kernel after a debugger was attached. A user in a
debugger is busy."""
MONITORS = frozenset(
    (b"atop", b"btop", b"gpustat", b"htop", b"iotop", b"nvidia-smi", b"nvitop", b"nvtop", b"top")
)
"""Programs that only show what others do."""
MULTIPLEXERS = frozenset((b"tmux", b"screen", b"SCREEN"))
SHELLS = frozenset((b"bash", b"dash", b"fish", b"ksh", b"sh", b"zsh"))
EDITOR_PROCESSES = (b"--type=extensionHost", b"--type=ptyHost", b"--type=fileWatcher")
"""Arguments of the processes that VS Code's server keeps beside itself."""


def program_of(command: bytes) -> bytes:
    """Return the name of the program of a command line, or of Python's script."""
    arguments = command.split(b"\0")
    name = arguments[0].rpartition(b"/")[2]
    if name.startswith(b"python") and len(arguments) > 1:
        return arguments[1].rpartition(b"/")[2]
    return name


def is_prompt(command: bytes) -> bool:
    """Return whether this command line is a shell without a script or a command."""
    name, *arguments = command.rstrip(b"\0").split(b"\0")
    return name.rpartition(b"/")[2].lstrip(b"-") in SHELLS and all(
        argument.startswith(b"--") or (argument.startswith(b"-") and b"c" not in argument)
        for argument in arguments
    )


def is_monitor(command: bytes) -> bool:
    """Return whether this command only shows the activity of others, perhaps repeated by `watch`."""
    if program_of(command) in MONITORS:
        return True
    name, *arguments = command.rstrip(b"\0").split(b"\0")
    if name.rpartition(b"/")[2] != b"watch":
        return False
    words = b" ".join(arguments).split()
    while words and words[0].startswith(b"-"):
        # An interval may be a separate argument.
        words = words[2:] if words[0] in (b"-n", b"--interval") else words[1:]
    return bool(words) and words[0].rpartition(b"/")[2] in MONITORS


def is_placeholder(command: bytes) -> bool:
    """Return whether this command does nothing and never ends: `sleep infinity`, `tail -f /dev/null`."""
    name, *arguments = command.rstrip(b"\0").split(b"\0")
    program = name.rpartition(b"/")[2]
    if program == b"sleep":
        return len(arguments) == 1 and arguments[0].lower() in (b"inf", b"infinity")
    files = [argument for argument in arguments if not argument.startswith(b"-")]
    return program == b"tail" and files == [b"/dev/null"] and len(arguments) > 1
