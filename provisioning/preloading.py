"""Apps whose program can be imported before anybody has asked for them.

A recipe belongs to one start command, word for word. A driver that keeps started, unclaimed processes
(docs/adr/0013) imports the recipe's modules in them; a workspace whose command and environment fit the recipe
may take one over, every other workspace starts its own program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from provisioning.types import AppSpec

# The server starts in half the time without rfc3987_syntax, which compiles a grammar when it is
# imported (0.7 of 1.35 s of CPU). jsonschema does without it: event schemas are then not checked for
# the format "iri", which none of them uses. Only the server is meant; kernels import what they like.
JUPYTER_MAIN = (
    "import sys; sys.modules['rfc3987_syntax'] = None; from jupyterlab.labapp import main; sys.exit(main())"
)

# Read by the interpreter, the loader or the C library when a program begins, so too late afterwards.
FIXED_AT_START = ("PYTHON", "LD_", "LC_", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_")
FIXED_NAMES = frozenset({"PATH", "LANG", "LANGUAGE", "HOME", "TMPDIR"})


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is imported ahead of a command.

    `command` is the beginning of the app's argv: an interpreter, `-c` and the code that is run in the
    end. `blocked` modules are kept from being imported by the app. `kernel_modules` are imported first,
    into a process of which kernels are forked; `kernel_options` tell the app to use it. `direct`: it is a
    Jupyter server, which answers on the workspace's socket itself.
    """

    name: str
    program: str
    command: tuple[str, str, str]
    modules: tuple[str, ...]
    blocked: tuple[str, ...] = ()
    kernel_modules: tuple[str, ...] = ()
    kernel_options: tuple[str, ...] = ()
    direct: bool = False

    def fits(self, app: AppSpec) -> bool:
        """Whether `app` may take over a process that has been made ready by this recipe."""
        changed = [
            key for key in app.env if key in FIXED_NAMES or key.startswith(FIXED_AT_START) or key in ("TZ",)
        ]
        return app.argv[:3] == self.command and not changed

    def loading(self, modules: tuple[str, ...]) -> Recipe:
        """The recipe with more modules, which the app loads from its environment when it starts."""
        return replace(self, modules=(*self.modules, *modules)) if modules else self

    def as_json(self) -> dict[str, Any]:
        """For `provisioning/agent/apps/app_host.py`."""
        return asdict(self)


JUPYTERLAB = Recipe(
    name="jupyterlab",
    program="jupyter-lab",
    command=("python3", "-c", JUPYTER_MAIN),
    # What a server without any workspace's configuration has imported when it answers for the first time.
    modules=(
        "jupyterlab.labapp",
        "IPython.display",
        "httpcore",
        "jinja2.ext",
        "jupyter_lsp.handlers",
        "jupyter_lsp.serverextension",
        "jupyter_lsp.specs",
        "jupyter_server.kernelspecs.handlers",
        "jupyter_server.nbconvert.handlers",
        "jupyter_server.services.api.handlers",
        "jupyter_server.services.config.handlers",
        "jupyter_server.services.contents.handlers",
        "jupyter_server.services.events.handlers",
        "jupyter_server.services.kernels.handlers",
        "jupyter_server.services.kernelspecs.handlers",
        "jupyter_server.services.nbconvert.handlers",
        "jupyter_server.services.security.handlers",
        "jupyter_server.services.sessions.handlers",
        "jupyter_server.services.shutdown",
        "jupyter_server.view.handlers",
        "jupyter_server_terminals.app",
        "notebook_shim.nbserver",
        "tornado.platform.asyncio",
    ),
    blocked=("rfc3987_syntax",),
    kernel_modules=(
        "ipykernel.kernelapp",
        "ipykernel.debugger",
        "ipykernel.ipkernel",
        "IPython.core.completerlib",
        "IPython.core.debugger",
        "IPython.core.logger",
        "IPython.extensions.storemagic",
        "IPython.utils.wildcard",
        "debugpy.server.api",
        "psutil",
        "runpy",
        "sqlite3",
        "tornado.platform.asyncio",
        "tornado.queues",
    ),
    kernel_options=("--KernelProvisionerFactory.default_provisioner_name=berth-forked",),
    direct=True,
)
RECIPES = (JUPYTERLAB,)


def recipe_for(app: AppSpec) -> Recipe | None:
    """The recipe that fits `app`, or None."""
    return next((recipe for recipe in RECIPES if recipe.fits(app)), None)


def recipes_among(programs: Mapping[str, str]) -> tuple[Recipe, ...]:
    """The recipes whose program is installed; `programs` maps names to paths, empty where there is none."""
    return tuple(recipe for recipe in RECIPES if programs.get(recipe.program))
