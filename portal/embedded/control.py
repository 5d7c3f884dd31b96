"""`down` and `status`, which control a running `up` through its lock, its state file and signals."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from portal.embedded.environment import Instance
from provisioning.service import instance_lock, processes
from provisioning.service.console import Console, Problem
from provisioning.service.environ import ROOT, UP

DOWN_LIMIT_S = 120.0
COUNT_LIMIT_S = 30
EXIT_ALL, EXIT_SOME, EXIT_NOTHING = 0, 1, 3


def down(instance: Instance, console: Console, *, keep_workspaces: bool) -> int:
    """Stop the running `up` like Ctrl-C, and wait until it has ended."""
    if not instance_lock.is_held(instance.run_dir):
        left = processes.leftovers(instance.id)
        processes.end(left, instance.id)
        ended = f" Ended {len(left)} leftover processes." if left else ""
        console.say(f"Berth is not running from {instance.home}.{ended}")
        return 0
    pid = instance_lock.supervisor_pid(instance.run_dir)
    if pid is None:
        raise Problem(
            f"Berth runs from {instance.home}, but its process is unknown.",
            f"Press Ctrl-C where `{UP}` runs.",
        )
    with console.step("Berth") as step:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            step.result = "stopped"
            return 0
        try:
            signal.pidfd_send_signal(handle, signal.SIGUSR1 if keep_workspaces else signal.SIGTERM)
            deadline = time.monotonic() + DOWN_LIMIT_S
            while not select.select([handle], [], [], 0.5)[0]:
                step.update(
                    "stopping workspaces and services" if not keep_workspaces else "stopping services"
                )
                if time.monotonic() > deadline:
                    raise Problem(
                        f"Berth (process {pid}) did not stop within {DOWN_LIMIT_S:.0f} s.",
                        f"See {instance.logs_dir}; `kill -9 {pid}` ends it; the next start cleans up.",
                    )
        except PermissionError as error:
            raise Problem(
                f"Process {pid} belongs to another user.", f"Run this as the user who ran `{UP}`."
            ) from error
        finally:
            os.close(handle)
        step.result = "stopped"
    return 0


def status(instance: Instance, environ: Mapping[str, str], console: Console) -> int:
    """Print the state of the services and the number of workspaces by state. Returns the exit code."""
    if not instance_lock.is_held(instance.run_dir):
        console.say(f"Berth is not running from {instance.home}. Start it with `{UP}`.")
        return EXIT_NOTHING
    state = instance_lock.read_state(instance.run_dir)
    console.say(f"Berth is {state.get('phase', 'starting')}: {state.get('url', instance.public_url)}")
    console.say(f"  {'service':<10} {'state':<11} {'pid':>8} {'up':>9} {'port':>6} {'restarts':>9}")
    services = state.get("services", [])
    for service in services:
        alive = service["state"] in {"running", "starting"} and service["started_at"]
        console.say(
            f"  {service['name']:<10} {service['state']:<11} {service['pid'] or '–':>8} "
            f"{_duration(time.time() - service['started_at']) if alive else '–':>9} "
            f"{service['port'] or '–':>6} {service['restarts']:>9}"
            + (f"  {service['detail']}" if service["detail"] else "")
        )
    console.say(f"  workspaces: {_workspaces(instance, environ)}")
    healthy = bool(services) and all(service["state"] == "running" for service in services)
    return EXIT_ALL if healthy and state.get("phase") == "running" else EXIT_SOME


def _workspaces(instance: Instance, environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "portal", "workspaces", "count"],
            cwd=ROOT,
            env=instance.portal_environ(environ),
            capture_output=True,
            text=True,
            timeout=COUNT_LIMIT_S,
        )
        counts = json.loads(done.stdout) if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        return f"not counted within {COUNT_LIMIT_S} s (the machine or database is busy)"
    except (OSError, ValueError):
        counts = None
    if counts is None:
        return "unknown (the database did not answer)"
    return ", ".join(f"{number} {state}" for state, number in counts.items()) or "none"


def _duration(seconds: float) -> str:
    total = max(int(seconds), 0)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min"
    if total < 48 * 3600:
        return f"{total // 3600} h {total % 3600 // 60} m"
    return f"{total // 86400} d"
