"""Cloning while the app runs: starts a separate process (`checkouts.py`) and reports its progress."""

# ruff: noqa: PTH100, PTH118, PTH120, PTH123, UP031

from __future__ import annotations

import json
import os
import sys

from .app import command_and_environment, execute
from .portal import REVOKED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import Config
    from .log import Log
    from .portal import Portal


class CloneRun:
    """The clones of one start. `ended` waits for the end of the run, `end` triggers it."""

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
        """Start the process that clones; `output` is the read end of its output. Return whether it runs."""
        config = self.config
        _, env = command_and_environment(config, port)
        env["BERTH_CHECKOUTS"] = json.dumps(
            {
                "home": config["home"],
                "workspace": str(config["workspace_id"])[:8],
                "egress": config["egress"],
                "egress_allow": config["egress_allow"],
                "items": config["checkouts"],
            }
        )
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkouts.py")
        argv = [sys.executable, "-I", "-S", program]
        try:
            self.output = execute(argv[0], argv, env, config["home"], 0).output
        except OSError as error:
            self.log.note("could not clone repositories: %s" % error)
        return self.output >= 0

    def follow(self) -> None:
        """Thread: report the progress of the clones to the portal and to the log."""
        with open(self.output, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    report = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(report, dict):
                    continue
                summary = " ".join(
                    str(report[name]) for name in ("what", "state", "code", "commit") if name in report
                )
                if report.get("state") != "cloning" or "percent" not in report:
                    self.log.note_unheld(summary)
                if report.get("detail"):
                    report["detail"] = self.log.redact(str(report["detail"]))
                    self.log.note_unheld(report["detail"])
                self.send_report(report)

    def send_report(self, report: Config) -> None:
        """Report a step. Final states are retried for a while, intermediate ones are sent once."""
        wait_s = 0.2
        for _ in range(6 if report.get("state") not in ("cloning", "installing") else 1):
            status, _answer = self.portal.post("checkout", report)
            if status in REVOKED:
                self.end("revoked")
                return
            if 0 < status < 500 or self.ended(wait_s):
                return
            wait_s *= 2
