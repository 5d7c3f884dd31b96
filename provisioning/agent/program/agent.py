"""The agent inside a workspace: starts the app, reports to the portal, and ends the app.

Standard library only, Python 3.9 or newer. The driver mounts this folder read-only in the workspace and
starts `python -I -S agent.py CONFIG [LISTENER]`.

LISTENER is a listening Unix socket inherited from the driver. If present, it is the only way to reach the
app. `relay.py` forwards its connections to the app's port, unless the app accepts them itself, as a preloaded
app may.

CONFIG is a JSON file (mode 0600) with these keys; those marked * have a default:

argv, env            the app; `{port} {home} {token} {token_file} {name}` are replaced in both
ports                candidate TCP ports on 127.0.0.1; the first free one is used
ready_path, activity*   HTTP path that answers below 500 when ready; `jupyter` and `marimo` read kernels
endpoint*            URL of the app, as reported to the portal; `{port}` is replaced
home, name, app_token, workspace_id, generation
agent_url            the portal: `http://…`, or `unix:/path` of a socket
agent_token, heartbeat_s*      the token of this start
start_timeout_s*, stop_timeout_s*
state_path, log_path, log_max_bytes*      files that the driver reads; one old log is kept
devices*             UUIDs of the granted GPUs; `shared_devices`* are those of which it has a share, and
                     `gpu_processes_visible`* says that /proc shows processes with open device files
packages*            folder for packages that the user installs (`packages_overlay.make`)
progress_dir*        folder to create, in which the app reports its progress (`progress.py`)
remove_config*       true: delete CONFIG after reading it, because it contains tokens
secrets*             true: fetch the workspace's secrets from the portal before the app starts, and pass them
                     as variables, or as files in `secrets_dir`*, a folder to create in memory
checkouts*           repositories to clone while the app runs (`checkouts.py`); `git_dir`* is a folder to
                     create in memory for Git's settings and credentials, `known_hosts`* are SSH host keys,
                     `egress`* and `egress_allow`* are its egress policy

`python -I -S agent.py --unclaimed CLAIM_FD OWNER_FD LISTENER FOLDER PROGRAM [ARGUMENT…]` starts PROGRAM,
which preloads an app (`apps/app_host.py`), before it is assigned to a workspace. It waits for one connection
on CLAIM_FD, a listening socket, sends `yours`, and reads CONFIG (and `rlimits`*) from it as one line. From
then on it is the agent of that workspace, and PROGRAM its app. It ends when PROGRAM ends, when the process of
the pidfd OWNER_FD ends before a connection arrives, or when a connection closes without CONFIG. It writes a
state file to FOLDER.

Values of secrets exist only in this process, in the app, and in the files of `secrets_dir`.

`python -I -S agent.py --around-gvisor …` starts a second agent inside gVisor with `--inside-gvisor …`, which
behaves as above (`gvisor.py`).

The state file is `{"phase": unclaimed|starting|ready|exited, "reason", "exit_code", "port", "generation"}`.
Exit codes of the agent: 0 ended on request or with its app, 64 invalid configuration, 75 no free port.
"""

# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

PACKAGE = "berth_agent"


def module(name: str) -> ModuleType:
    """Import a module beside this file as part of a package outside `sys.path`.

    This way, Python never searches a folder of the workspace, and no module shadows one of Python's own.
    """
    if PACKAGE not in sys.modules:
        package = type(sys)(PACKAGE)
        package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
        sys.modules[PACKAGE] = package
    return __import__(PACKAGE + "." + name, fromlist=["*"])


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # the cache would be beside the modules, or the folder is read-only
    if sys.argv[1:2] == ["--around-gvisor"]:
        code = module("gvisor").run_around(sys.argv[2:])
    elif sys.argv[1:2] == ["--inside-gvisor"]:
        code = module("gvisor").run_inside(sys.argv[2:], __file__)
    else:
        code = module("run").main(sys.argv)
    sys.stdout.flush()
    os._exit(code)  # threads may still wait for a portal that does not answer
