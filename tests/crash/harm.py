"""Workspaces in transition, processes to kill, and invariants that must hold afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import httpx

from portal.workspaces.lifecycle import HOLDING
from provisioning.drivers.local import processes
from tests.instance import Berth, eventually

RECOVERY_LIMIT_S = 60.0
REST = {"running": "running", "stopped": "stopped", "deleted": "terminated"}


def parent_of(pid: int) -> int:
    """The parent of a live process, else 0."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
    return 0 if state in "ZX" else int(parent)


def children_of(pid: int) -> list[int]:
    """The live child processes of `pid`."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [child for child in pids if parent_of(child) == pid]


def kill(pids: Iterable[int]) -> int:
    """Send SIGKILL to each; return how many existed."""
    hit = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            hit += 1
    return hit


class Watch:
    """Polls /proc for workspaces with two agents at once, which were started twice."""

    def __init__(self, berth: Berth) -> None:
        self.doubles: set[str] = set()
        self._berth = berth
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            agent_processes = [process for process in self._berth.owned() if process.is_agent]
            # While an agent starts its app, there are two: the child has not called exec yet.
            pids = {process.pid for process in agent_processes}
            agents = [process for process in agent_processes if parent_of(process.pid) not in {0, *pids}]
            many = [name for name, count in Counter(agent.workspace for agent in agents).items() if count > 1]
            for name in many:
                seen = [(agent.pid, agent.generation) for agent in agents if agent.workspace == name]
                self.doubles.add(f"{name}: {seen}")

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


class Fleet:
    """Ada's workspaces, and the desired state of each."""

    def __init__(self, berth: Berth, *, bystander: str) -> None:
        self.berth = berth
        self.token = berth.tokens["ada"]
        self.desired_state: dict[str, str] = {}
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{berth.port}/api/v1/",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=15,
        )
        self.members = [self.create(f"member-{number}") for number in range(4)]
        flavor = "cpu-small" if bystander == "jupyterlab" else "tiny"
        self.bystander = self.create("bystander", template=bystander, flavor=flavor)
        for workspace_id in self.members[2:]:
            self.want(workspace_id, "stopped")
        self.recovered()
        self.watch = Watch(berth)
        self.untouched = self.agents_of(self.bystander)

    def close(self) -> None:
        self.watch.close()
        self._http.close()

    # -- wishes ---------------------------------------------------------------------------------

    def create(self, name: str, *, template: str = "files", flavor: str = "tiny") -> str:
        """Create a workspace with desired state running. Repeats the request until it is answered."""
        body = {"team": "lab", "template": template, "flavor": flavor, "name": name}
        created = self._insist("POST", "workspaces", body, key=f"{name}-{time.monotonic_ns()}")
        workspace_id = str(UUID(created.json()["id"]))
        self.desired_state[workspace_id] = "running"
        return workspace_id

    def want(self, workspace_id: str, desired: str) -> None:
        """Request until accepted, whatever is unreachable."""
        verb = {"running": "start", "stopped": "stop"}.get(desired)
        if verb:
            self._insist("POST", f"workspaces/{workspace_id}/{verb}")
        else:
            self._insist("DELETE", f"workspaces/{workspace_id}")
        self.desired_state[workspace_id] = desired

    def want_all(self, wishes: dict[str, str]) -> None:
        """Request all at the same time."""
        with ThreadPoolExecutor(len(wishes)) as pool:
            for done in [pool.submit(self.want, *wish) for wish in wishes.items()]:
                done.result()

    def _insist(self, method: str, path: str, body: object = None, *, key: str = "") -> httpx.Response:
        last = ""

        def attempt() -> httpx.Response | None:
            nonlocal last
            try:
                headers = {"Idempotency-Key": key} if key else {}
                answer = self._http.request(method, path, json=body, headers=headers)
            except httpx.HTTPError as error:
                last = repr(error)
                return None
            last = f"{answer.status_code} {answer.text}"
            # 409: its current transition must end first.
            assert answer.is_success or answer.status_code in {409, 500, 502, 503, 504}, last
            return answer if answer.is_success else None

        return eventually(attempt, limit_s=RECOVERY_LIMIT_S, what=lambda: f"{method} {path}: {last}")

    # -- what must hold -------------------------------------------------------------------------

    def agents_of(self, workspace_id: str) -> list[tuple[int, int]]:
        """PID and generation of each agent of the workspace."""
        name = process_name(workspace_id)
        return [(agent.pid, agent.generation) for agent in self.berth.owned(name) if agent.is_agent]

    def problems(self) -> list[str]:
        """Violations of what must hold once everything has settled."""
        violations = [
            f"service {name} is {row['state']}"
            for name, row in self.berth.services().items()
            if row["state"] != "running"
        ]
        rows = {
            str(UUID(row["id"])): row
            for row in self.berth.rows("SELECT id, state, generation FROM workspaces_workspace")
        }
        held = Counter(
            str(UUID(row["workspace_id"]))
            for row in self.berth.rows(
                "SELECT workspace_id FROM inventory_allocation WHERE released_at IS NULL"
            )
        )
        running: dict[str, list[processes.OwnedProcess]] = {}
        for process in self.berth.owned():
            running.setdefault(process.workspace, []).append(process)
        for workspace_id, desired in self.desired_state.items():
            state = rows[workspace_id]["state"]
            if state != REST[desired]:
                violations.append(f"{workspace_id} should be {desired} and is {state}")
            there = running.pop(process_name(workspace_id), [])
            agents = [process for process in there if process.is_agent]
            if desired == "running":
                if [agent.generation for agent in agents] != [rows[workspace_id]["generation"]]:
                    violations.append(f"{workspace_id} has the agents {agents}")
                if self.berth.enter(workspace_id, self.token, "/") not in {200, 302}:
                    violations.append(f"{workspace_id} cannot be entered")
            elif there:
                violations.append(f"{workspace_id} should be {desired} and has {there}")
            folder = self.berth.home / "local" / process_name(workspace_id)
            if desired == "deleted" and folder.exists():
                violations.append(f"{folder} is left of a deleted workspace")
        violations += [f"{name} belongs to no workspace" for name in running]
        holding = {workspace_id for workspace_id, row in rows.items() if row["state"] in HOLDING}
        if held != Counter(holding):
            violations.append(f"{holding} hold capacity, the allocations say {held}")
        return violations

    def recovered(self, *, since: float | None = None) -> float:
        """Wait until there are no problems, at most `RECOVERY_LIMIT_S` from `since`; return the seconds."""
        began = since if since is not None else time.monotonic()
        left_s = RECOVERY_LIMIT_S - (time.monotonic() - began)
        eventually(lambda: not self.problems(), limit_s=left_s, what=lambda: "\n".join(self.problems()))
        return time.monotonic() - began


def process_name(workspace_id: str) -> str:
    return "ws-" + workspace_id.replace("-", "")
