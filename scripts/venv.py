"""Create the portal's own environment: `venv.py portal|dev [up]`.

Older Python versions can parse this file, so that they get a clear refusal.

portal   packages of the portal (requirements/portal.lock); with an NVIDIA driver also those of the GPU check
         (requirements/gpu.lock)
dev      all of these, and packages of tests and checks (requirements/dev.lock)
up       before a start: its ports must be free, and are held while packages are installed
"""

import contextlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(kind, next_step=""):
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(
            f"  ! Berth needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. "
            "Install one, or name it: make up PYTHON=python3.12"
        )
    sys.path.insert(0, str(ROOT))

    from provisioning.service import venvs
    from provisioning.service.console import Console, Problem

    target = ROOT / ".venv"
    locks = {name: ROOT / "requirements" / f"{name}.lock" for name in ("portal", "gpu", "dev")}
    if kind == "portal" and Path("/dev/nvidiactl").exists():
        kind = "gpu"
    # The lock of tests includes all packages of the portal and the GPU check.
    sufficient_locks = {"portal": ("portal", "gpu", "dev"), "gpu": ("gpu", "dev"), "dev": ("dev",)}[kind]
    console = Console()
    try:
        if not any(venvs.is_complete(target, locks[name]) for name in sufficient_locks):
            with (
                hold_ports() if next_step == "up" else contextlib.nullcontext(),
                console.step("Portal environment") as step,
            ):
                venvs.build(
                    target,
                    locks[kind],
                    log=ROOT / "var" / "logs" / "portal-environment.log",
                    clear=False,
                    progress=step.update,
                )
                step.result = f"{venvs.count_packages(locks[kind])} packages installed"
        link_project(target)
    except Problem as problem:
        console.complain(problem)
        return 1
    except KeyboardInterrupt:
        console.say()
        console.say("  Stopped. Run the command again to go on.")
        return 130
    except OSError as error:
        console.complain(
            Problem(
                f"{error.filename or target} cannot be written ({error.strerror}).",
                "Make it writable for this user, or free some space.",
            )
        )
        return 1
    return 0


def hold_ports():
    """Hold the ports on which `up` will listen. Raises `Problem` if one is in use."""
    from portal.embedded import ports
    from portal.embedded.environment import Instance

    return ports.hold_ports(Instance.from_environ(os.environ))


def link_project(target):
    """Make the packages importable from anywhere, and `berth` a command, without a build step."""
    from provisioning.service.files import write_file

    # The Python that created the environment may have another version than this one.
    site = next((target / "lib").glob("python3.*/site-packages"))
    files = {
        site / "berth.pth": (f"{ROOT}\n", 0o644),
        target / "bin" / "berth": (
            f"#!{target / 'bin' / 'python'}\nimport sys\n\nfrom portal.cli.main import main\n\n"
            "sys.exit(main())\n",
            0o755,
        ),
    }
    for path, (text, mode) in files.items():
        if not path.exists() or path.read_text() != text:
            write_file(path, text, mode=mode)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
