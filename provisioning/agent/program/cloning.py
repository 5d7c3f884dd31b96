"""What is cloned beside the app: a process of its own (`checkouts.py`), and what the portal hears of it."""

# ruff: noqa: PTH100, PTH118, PTH120, PTH123, UP031

from __future__ import annotations

import json
import os
import sys

from .app import execute, filled_in
from .portal import REVOKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import Config
    from .log import Log
    from .portal import Portal


class Cloning:
    """The clones of one start. `ended` waits for the end of the run, `end` brings it about."""

    def __init__(
        self,
        config: Config,
        portal: Portal,
        log: Log,
        ended: Callable[[float], bool],
        end: Callable[[str], None],
    ) -> None:
        self.config = config
        self.portal = portal
        self.log = log
        self.ended = ended
        self.end = end
        self.output = -1

    def start(self, port: int) -> bool:
        """Have a process clone what is to be cloned; `output` is the end of its output. Whether it runs."""
        config = self.config
        _, env = filled_in(config, port)
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
            self.output = execute(argv[0], argv, env, config["home"], 0).output
        except OSError as error:
            self.log.note("nothing could be cloned: %s" % error)
        return self.output >= 0

    def follow(self) -> None:
        """Thread: tell the portal what becomes of the clones, and the log, too."""
        with open(self.output, encoding="utf-8", errors="replace") as lines:
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
                self.tell(said)

    def tell(self, said: Config) -> None:
        """Tried for a while: its end is worth knowing, a step on the way is not."""
        wait_s = 0.2
        for _ in range(6 if said.get("state") not in ("cloning", "installing") else 1):
            status, _answer = self.portal.post("checkout", said)
            if status in REVOKED:
                self.end("revoked")
                return
            if 0 < status < 500 or self.ended(wait_s):
                return
            wait_s *= 2
