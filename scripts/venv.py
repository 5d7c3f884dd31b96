"""Makes the portal's own environment: `venv.py portal|dev [up]`. Older Pythons can read it, to be refused.

portal   what runs the portal (requirements/portal.lock); where there is an NVIDIA driver, with what
         the GPU check needs (requirements/gpu.lock)
dev      that and what tests and checks need (requirements/dev.lock)
up       for a start that follows: its ports have to be free, and are held while packages are installed
"""

import contextlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(kind, then=""):
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
    # What tests need holds everything that the portal needs, the GPU check included.
    good_enough = {"portal": ("portal", "gpu", "dev"), "gpu": ("gpu", "dev"), "dev": ("dev",)}[kind]
    console = Console()
    try:
        if not any(venvs.is_complete(target, locks[name]) for name in good_enough):
            with (
                ports_of_a_start() if then == "up" else contextlib.nullcontext(),
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


def ports_of_a_start():
    """Hold the ports that `up` will listen on. Raises `Problem` where one is taken."""
    from portal.embedded import ports
    from portal.embedded.environment import Instance

    return ports.hold_ports(Instance.from_environ(os.environ))


def link_project(target):
    """Make the packages importable from anywhere, and `berth` a command, without a build step."""
    from provisioning.service.files import write_file

    # Of the Python that made the environment, which may not be this one.
    site = next((target / "lib").glob("python3.*/site-packages"))
    wanted = {
        site / "berth.pth": (f"{ROOT}\n", 0o644),
        target / "bin" / "berth": (
            f"#!{target / 'bin' / 'python'}\nimport sys\n\nfrom portal.cli.main import main\n\n"
            "sys.exit(main())\n",
            0o755,
        ),
    }
    for path, (text, mode) in wanted.items():
        if not path.exists() or path.read_text() != text:
            write_file(path, text, mode=mode)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
