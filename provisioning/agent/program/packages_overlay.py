"""A user's own packages on top of a workspace's read-only environment. Standard library only.

They are in a virtual environment in the user's home, named by environment and Python version, so it survives
restarts. Its `site-packages` come first, and a `.pth` file adds those of the environment. `pip install` and
`uv pip install` find it by PATH and VIRTUAL_ENV, `%pip install` by the kernel's interpreter. The agent
creates it as the workspace's user before the app starts; if nothing has changed, this only reads one file.
"""

# ruff: noqa: PTH101, PTH103, PTH105, PTH108, PTH112, PTH114, PTH115, PTH118, PTH119
# ruff: noqa: PTH120, PTH123, PTH208, PTH211
# pathlib would double the time that the agent takes to start.

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .config import Config

STAMP = ".berth-overlay"
RECIPE = "2"
PTH = "_berth_environment.pth"
KERNEL = "share/jupyter/kernels/python3"
PIP = """#!{python}
import sys
from pip._internal.cli.main import main
sys.exit(main())
"""


def prepare(config: Config) -> None:
    """Create the folder of the user's own packages. If that fails, the app starts without it."""
    try:
        make(**config["packages"])
    except OSError as error:
        config["env"].pop("VIRTUAL_ENV", None)
        sys.stderr.write("could not set up the user's packages: %s\n" % error)  # noqa: UP031


def make(folder: str, python: str, site: str, reset: bool = False) -> None:
    """Create the overlay at `folder` for the environment of `python` with the packages in `site`.

    `reset` first removes installed packages. Raises `OSError`.
    """
    real = os.path.realpath(python)
    minor = os.path.basename(os.path.dirname(site))
    stamp = "\n".join((RECIPE, folder, real, site, ""))
    if reset:
        _remove(folder)
    try:
        with open(os.path.join(folder, STAMP), encoding="utf-8") as file:
            if file.read() == stamp:
                return
    except OSError:
        pass
    own_site = os.path.join(folder, "lib", minor, "site-packages")
    for path in (own_site, os.path.join(folder, "bin"), os.path.join(folder, KERNEL)):
        os.makedirs(path, exist_ok=True)
    for name, target in (("python", real), ("python3", "python"), (minor, "python")):
        _link(os.path.join(folder, "bin", name), target)
    _write(os.path.join(folder, "pyvenv.cfg"), _configuration(os.path.dirname(real)))
    _write(os.path.join(own_site, PTH), "import site; site.addsitedir(%r)\n" % site)  # noqa: UP031
    interpreter = os.path.join(folder, "bin", "python")
    if os.path.isdir(os.path.join(site, "pip")):
        for name in ("pip", "pip3"):
            _write(os.path.join(folder, "bin", name), PIP.format(python=interpreter), 0o755)
    if os.path.isdir(os.path.join(site, "ipykernel")):
        _kernel(folder, interpreter, os.path.dirname(os.path.dirname(python)))
    _write(os.path.join(folder, STAMP), stamp)


def _configuration(home: str) -> str:
    return "home = " + home + "\ninclude-system-site-packages = false\n"


def _kernel(folder: str, interpreter: str, environment: str) -> None:
    """Write Jupyter's kernel `python3` with this interpreter."""
    import json

    spec = {
        "argv": [interpreter, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "metadata": {"debugger": True},
    }
    _write(os.path.join(folder, KERNEL, "kernel.json"), json.dumps(spec, indent=1))
    # Copies: Jupyter does not serve files linked from outside the kernel's folder.
    images = os.path.join(environment, KERNEL)
    if os.path.isdir(images):
        for name in os.listdir(images):
            if name.startswith("logo-"):
                with open(os.path.join(images, name), "rb") as file:
                    _write(os.path.join(folder, KERNEL, name), file.read())


def _remove(folder: str) -> None:
    import shutil

    if os.path.islink(folder):
        os.unlink(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _link(path: str, target: str) -> None:
    if os.path.islink(path) and os.readlink(path) == target:
        return
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(target, path)


def _write(path: str, content: str | bytes, mode: int = 0o644) -> None:
    temporary = path + ".new"
    with open(temporary, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    os.chmod(temporary, mode)
    os.replace(temporary, path)
