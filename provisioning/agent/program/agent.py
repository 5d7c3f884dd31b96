"""The agent inside a workspace: starts the app, tells the portal, ends it.

Standard library only, Python 3.9 or newer; the driver shows this folder in the workspace, read-only, and
starts `python -I -S agent.py CONFIG [LISTENER]`.

LISTENER is a listening Unix socket that the driver has made and passed on: where it is given, nothing else
leads to the app. `relay.py` joins its connections to the app's port, unless the app takes them itself, as
one that was started ahead of time may.

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
  packages*            where packages of the user's own go (`packages_overlay.make`)
  progress_dir*        a folder to make, where the app tells how fast its work goes on (`progress.py`)
  remove_config*       true: delete CONFIG once it has been read, because it holds tokens
  secrets*             true: ask the portal for the workspace's secrets before the app is started, and give it
                       them as variables, or as files in `secrets_dir`*, a folder to make in memory
  checkouts*           repositories to clone beside the app (`checkouts.py`); `git_dir`* is a folder to make
                       in memory for Git's settings and credentials, `known_hosts`* keys of hosts of SSH,
                       `egress`* what may be reached

Run as `python -I -S agent.py --unclaimed CLAIM_FD OWNER_FD LISTENER FOLDER PROGRAM [ARGUMENT…]` it starts
PROGRAM, which imports an app ahead of time (`apps/app_host.py`), before it knows of any workspace. It waits
for one connection on CLAIM_FD, a listening socket, says `yours`, and reads CONFIG (and `rlimits`*) from it
as one line; from then on it is the agent of that workspace, and PROGRAM its app. It ends when the process
of the pidfd OWNER_FD ends before a connection has come, when a connection closes without CONFIG, and when
PROGRAM ends. FOLDER gets a state file.

Values of secrets are in this process and in the app, and in no file but those of `secrets_dir`.

Run as `python -I -S agent.py --around-gvisor …` it starts another of its kind in gVisor, which begins as
`--inside-gvisor …` and then is as above (`gvisor.py`).

The state file is `{"phase": unclaimed|starting|ready|exited, "reason", "exit_code", "port", "generation"}`.
Exit codes of the agent: 0 ended on request or with its app, 64 bad configuration, 75 no port free.
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
    """A module beside this file, as one of a package that is in no folder of `sys.path`.

    So no module is ever looked for in a folder of the workspace, and none of these hides one of Python's.
    """
    if PACKAGE not in sys.modules:
        package = type(sys)(PACKAGE)
        package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
        sys.modules[PACKAGE] = package
    return __import__(PACKAGE + "." + name, fromlist=["*"])


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # it lies beside the modules, or cannot be written there
    if sys.argv[1:2] == ["--around-gvisor"]:
        code = module("gvisor").around(sys.argv[2:])
    elif sys.argv[1:2] == ["--inside-gvisor"]:
        code = module("gvisor").inside(sys.argv[2:], __file__)
    else:
        code = module("run").main(sys.argv)
    sys.stdout.flush()
    os._exit(code)  # threads may still wait for a portal that does not answer
