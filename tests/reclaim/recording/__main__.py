"""Records sessions in a running Berth.

`BERTH_HOME=… BERTH_PORT=… python -m tests.reclaim.recording`. Berth must run on this machine, started by
`make up` with BERTH_HEARTBEAT_S=5 and without request limits, and this program as its user (as root for the
agent). Each session has its own workspace; a batch runs in parallel. A session written to `--out` replaces an
earlier one of the same name. VS Code needs an environment with `npm:code-server`, given by `--code`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import httpx

from tests.reclaim import histories
from tests.reclaim.recording.places import Place
from tests.reclaim.recording.session import Session
from tests.reclaim.recording.sessions import SESSIONS, VARIANTS
from tests.reclaim.recording.watching import Watcher

READY = {"jupyterlab": "/api", "marimo": "/health", "vscode": "/healthz"}
FLAVORS = {"recorded": (25, 300), "recorded-code": (60, 900), "recorded-busy": (100, 300)}
OPEN_LIMIT_MS = 180_000
QUIET_S = 110.0
"""Minimum time for which a session is recorded after its last action."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="names that begin so, with commas between")
    parser.add_argument("--seconds", type=float, default=200, help="how long each is recorded")
    parser.add_argument("--code", default="code", help="the environment with code-server")
    parser.add_argument("--software", default="", help="versions: NAME=VERSION with commas between")
    parser.add_argument("--out", type=Path, default=histories.FOLDER)
    return parser.parse_args()


class Recorder:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.port = int(os.environ["BERTH_PORT"])
        self.portal = f"http://127.0.0.1:{self.port}"
        self.token = prepare()
        self.http = httpx.Client(
            base_url=f"{self.portal}/api/v1/", headers={"Authorization": f"Bearer {self.token}"}, timeout=60
        )
        self.watcher = Watcher(Path(os.environ["BERTH_HOME"]) / "database" / "berth.sqlite3")
        self.failed: set[str] = set()
        self.places: list[Place] = []
        self.starting = threading.Semaphore(4)

    def place(self, session: Session) -> Place:
        flavor = "recorded-code" if session.template == "vscode" else "recorded"
        if "data-loading" in session.name:
            flavor = "recorded-busy"
        body = {"team": "default", "template": session.template, "flavor": flavor, "name": session.name}
        if session.template == "vscode":
            body["environment"] = self.arguments.code
        answer = self.http.post("workspaces", json=body)
        if answer.is_error:
            raise RuntimeError(answer.text)
        workspace = answer.json()
        deadline = time.monotonic() + 400
        while workspace["state"] != "running":
            if time.monotonic() > deadline or workspace["state"] == "failed":
                raise RuntimeError(f"{session.name}: {workspace['state']} {workspace['reason']}")
            lift(workspace["id"])
            time.sleep(1)
            workspace = self.http.get(f"workspaces/{workspace['id']}").json()
        from portal.workspaces.tokens import agent_token

        token = agent_token(UUID(workspace["id"]), 1)
        # Call the agent API directly, as the agent does.
        portal = f"http://127.0.0.1:{os.environ['BERTH_WEB_PORT']}"
        place = Place(workspace["id"], workspace["url"], self.token, portal, token)
        place.wait(READY[session.template])
        return place

    def record(self, session: Session, place: Place) -> None:
        """Run the session and wait until enough has been reported."""
        began = time.time()
        session.act(place)
        left = self.arguments.seconds - (time.time() - began)
        time.sleep(0 if session.goes_on else max(left, QUIET_S))

    def browse(self, pairs: list[tuple[Session, Place]]) -> None:
        """Keep all pages open in one browser and one thread until the end."""
        from playwright.sync_api import sync_playwright

        from tests.browser import CHROMIUM_ARGS, chromium_path
        from tests.populate import PASSWORD

        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_ARGS)
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            page = context.new_page()
            page.goto(f"http://localhost:{self.port}/")
            page.fill("#id_username", "admin")
            page.fill("#id_password", PASSWORD)
            page.get_by_role("button", name="Sign in", exact=True).click()
            page.wait_for_url(lambda url: "/sign-in/" not in url)
            began = time.time()
            for session, place in pairs:
                tab = context.new_page()
                try:
                    tab.goto(place.origin, timeout=OPEN_LIMIT_MS)
                    tab.wait_for_timeout(10_000)
                    session.act(place, tab)
                    tab.screenshot(path=f"/tmp/recording-{session.name}.png")
                except Exception:
                    traceback.print_exc()
                    tab.screenshot(path=f"/tmp/recording-{session.name}.png")
                    self.failed.add(session.name)
            while time.time() - began < self.arguments.seconds:
                page.wait_for_timeout(1_000)
            page.wait_for_timeout(QUIET_S * 1000)
            browser.close()

    def run(self, sessions: list[Session]) -> None:
        with ThreadPoolExecutor(len(sessions) + 1) as pool:
            alone = [pool.submit(self.follow, session) for session in sessions if not session.browser]
            if browsed := [session for session in sessions if session.browser]:
                self.follow_in_browser(browsed)
            for session in alone:
                session.result()
        for place in self.places:
            for channel in place.open:
                channel.close()
        self.watcher.end()

    def follow(self, session: Session) -> None:
        """Record one session from the start of its workspace to its file."""
        try:
            place = self.started(session)
        except Exception:
            print(f"{session.name} is not recorded: {traceback.format_exc()}", flush=True)
            return
        try:
            self.record(session, place)
            self.write(session, place)
        except Exception:
            print(f"{session.name} is not recorded: {traceback.format_exc()}", flush=True)
        finally:
            self.http.delete(f"workspaces/{place.id}")

    def follow_in_browser(self, sessions: list[Session]) -> None:
        pairs = []
        for session in sessions:
            try:
                pairs.append((session, self.started(session)))
            except Exception:
                print(f"{session.name} is not recorded: {traceback.format_exc()}", flush=True)
        self.browse(pairs)
        for session, place in pairs:
            if session.name not in self.failed:
                self.write(session, place)
            self.http.delete(f"workspaces/{place.id}")

    def started(self, session: Session) -> Place:
        with self.starting:
            place = self.place(session)
        self.places.append(place)
        print(f"{time.strftime('%H:%M:%S')} {session.name} runs", flush=True)
        return place

    def write(self, session: Session, place: Place) -> None:
        reports = self.watcher.reports.get(place.id, [])
        if len(reports) < 10:
            print(f"{session.name}: only {len(reports)} reports", flush=True)
            return
        versions = dict(item.split("=") for item in self.arguments.software.split(",") if item)
        history = histories.History(
            name=session.name,
            done=session.done,
            template=session.template,
            software=versions,
            recorded_at=datetime.fromtimestamp(reports[0][0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            gpu_percent=session.gpu,
            expected=session.expected,
            lasted_s=round(time.time() - reports[0][0], 1),
            reports=[(round(at - reports[0][0], 1), figures) for at, figures in reports],
        )
        history.write(self.arguments.out)
        for item in VARIANTS:
            if item.base == session.name:
                history.with_jump(item.name, item.done, item.jump_s).write(self.arguments.out)


def lift(workspace: str) -> None:
    """Raise the CPU limit to a whole core; the flavor is small so that all workspaces fit."""
    name = "ws-" + workspace.replace("-", "")
    root = Path("/sys/fs/cgroup")
    for group in (*root.glob(f"cpu/berth-*/{name}"), *root.glob(f"berth-*/{name}/cpu.max")):
        with contextlib.suppress(OSError):  # just created or just removed
            if group.is_dir():
                (group / "cpu.cfs_quota_us").write_text("100000")
            else:
                group.write_text("100000 100000")


def prepare() -> str:
    """Create small flavors and a token of the administrator."""
    from portal.embedded.environment import Instance

    os.environ.update(Instance.from_environ(dict(os.environ)).variables())
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from portal.catalog.models import Flavor
    from portal.common.actors import SYSTEM
    from portal.people.accounts import tokens
    from portal.people.accounts.models import User

    for slug, (cpu_milli, memory_mib) in FLAVORS.items():
        values = {"name": slug, "cpu_milli": cpu_milli, "memory_mib": memory_mib, "position": 950}
        Flavor.objects.update_or_create(slug=slug, defaults=values)
    admin = User.objects.get(username="admin")
    return tokens.create_token(actor=SYSTEM, user=admin, name=f"recording {time.time():.0f}").secret


def main() -> None:
    arguments = parse()
    prefixes = tuple(session for session in arguments.only.split(",") if session)
    sessions = [session for session in SESSIONS if not prefixes or session.name.startswith(prefixes)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    Recorder(arguments).run(sessions)


if __name__ == "__main__":
    main()
