"""Apps that can be preloaded before a workspace is requested.

A recipe belongs to exactly one start command. A driver that keeps spare processes (docs/adr/0013) imports the
recipe's modules in them. A workspace whose command and environment match may take one over; all others start
their own program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from provisioning.types import AppSpec

# The server starts in half the time without rfc3987_syntax, which compiles a grammar at import (0.7 of 1.35 s
# of CPU). jsonschema works without it: event schemas are then not checked for the format "iri", which none of
# them uses. This affects only the server; kernels can import it.
JUPYTER_MAIN = (
    "import sys; sys.modules['rfc3987_syntax'] = None; from jupyterlab.labapp import main; sys.exit(main())"
)

# Read by the interpreter, the loader or the C library at program start, so later changes have no effect.
FIXED_AT_START = ("PYTHON", "LD_", "LC_", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_")
FIXED_NAMES = frozenset({"PATH", "LANG", "LANGUAGE", "HOME", "TMPDIR"})


@dataclass(frozen=True, slots=True)
class Recipe:
    """Modules to preload for a command, and how.

    `command` is the beginning of the app's argv: an interpreter, `-c` and the code to run in the end.
    `blocked` modules are kept from being imported by the app. `kernel_modules` are imported first, into a
    process that forks kernels; `kernel_options` make the app use it. `direct`: it is a Jupyter server that
    accepts connections on the workspace's socket itself.
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
        """Return whether `app` may take over a process prepared with this recipe."""
        changed = [
            key for key in app.env if key in FIXED_NAMES or key.startswith(FIXED_AT_START) or key in ("TZ",)
        ]
        return app.argv[:3] == self.command and not changed

    def loading(self, modules: tuple[str, ...]) -> Recipe:
        """Return the recipe with further modules that the app loads at its start."""
        return replace(self, modules=(*self.modules, *modules)) if modules else self

    def as_json(self) -> dict[str, Any]:
        """Return the recipe as JSON for `provisioning/agent/apps/app_host.py`."""
        return asdict(self)


JUPYTERLAB = Recipe(
    name="jupyterlab",
    program="jupyter-lab",
    command=("python3", "-c", JUPYTER_MAIN),
    # Modules that a server without workspace configuration has imported after its first response.
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
    """Return the recipe that fits `app`, or None."""
    return next((recipe for recipe in RECIPES if recipe.fits(app)), None)


def recipes_among(programs: Mapping[str, str]) -> tuple[Recipe, ...]:
    """Return the recipes whose program is installed; `programs` maps names to paths or ""."""
    return tuple(recipe for recipe in RECIPES if programs.get(recipe.program))
