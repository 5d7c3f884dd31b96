"""Mounts for sandboxes of another user, in a place that this user can access (`as_user.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provisioning.drivers.local.sandbox import SandboxPlan

Mount = dict[str, Any]

AS_USER = Path(__file__).resolve().with_name("as_user.py")
PROBE_TIMEOUT_S = 10
NOBODY_UID = 65534
STAGES = ("/mnt", "/media", "/srv", "/opt", "/var")
STAGE = next((path for path in STAGES if Path(path).is_dir()), STAGES[0])
"""A folder that exists on every machine and is hidden from sandboxes."""


def mount(source: str, name: str, *, readonly: bool = True) -> Mount:
    """Return an entry of a user's `mounts`: `source` as `name` below `STAGE`."""
    return {
        "source": source,
        "target": f"{STAGE}/{name}",
        "folder": Path(source).is_dir(),
        "readonly": readonly,
        "devices": False,
    }


_owners_shown: dict[int, bool] = {}


def can_show_owners(folder: Path) -> bool:
    """Return whether files in the folder support id-mapped mounts, as spares need. Root only."""
    device = folder.stat().st_dev
    if device not in _owners_shown:
        mapped_mount = {**mount(str(folder), "0"), "owners": [0, NOBODY_UID]}
        plan = {"user": user(NOBODY_UID, [mapped_mount]), "argv": ["/bin/true"]}
        argv = [sys.executable, "-I", "-S", str(AS_USER)]
        try:
            process = subprocess.run(
                argv,
                input=json.dumps(plan).encode(),
                capture_output=True,
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        _owners_shown[device] = process.returncode == 0
    return _owners_shown[device]


def user(uid: int, mounts: Sequence[Mount]) -> dict[str, Any]:
    """Return the `user` of a plan for `launcher.py` or `as_user.py`."""
    return {"uid": uid, "at": STAGE, "mounts": list(mounts)}


def staged(plan: SandboxPlan) -> tuple[SandboxPlan, list[Mount]]:
    """Return the plan with all non-system paths replaced by paths in `STAGE`, and the mounts for them."""
    bwrap, mounts = staged_program(plan.bwrap)

    def put(source: str, *, readonly: bool = True) -> str:
        mounts.append(mount(source, str(len(mounts)), readonly=readonly))
        return str(mounts[-1]["target"])

    moved = replace(
        plan,
        bwrap=bwrap,
        readonly=(),
        readonly_at=tuple((put(source), inside) for source, inside in readonly_mounts(plan)),
        writable_at=tuple((put(source, readonly=False), inside) for source, inside in plan.writable_at),
        agent=put(plan.agent) if plan.agent else "",
        run=put(plan.run, readonly=False),
        gateway=put(plan.gateway),
        etc=put(plan.etc),
        home=put(plan.home, readonly=False) if plan.home else "",
        runsc=put(plan.runsc) if plan.runsc else "",
        bundle=put(plan.bundle) if plan.runsc else "",
    )
    return moved, mounts


def readonly_mounts(plan: SandboxPlan) -> Sequence[tuple[str, str]]:
    """Return the read-only mounts: host path and path inside."""
    return (*((path, path) for path in plan.readonly), *plan.readonly_at)


def staged_program(bwrap: str) -> tuple[str, list[Mount]]:
    """Return bubblewrap's path for another user, and the mounts it needs.

    A packaged bubblewrap has its libraries beside it.
    """
    package = Path(bwrap).parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    if not libraries.is_dir():
        return bwrap, []
    mounts = [mount(str(path), f"program/{path.name}") for path in (package, libraries)]
    return f"{mounts[0]['target']}/{Path(bwrap).parent.name}/{Path(bwrap).name}", mounts
