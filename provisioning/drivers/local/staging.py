"""What a sandbox of another user shows, from where that user reaches it (`as_user.py`)."""

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
SOMEBODY = 65534
STAGES = ("/mnt", "/media", "/srv", "/opt", "/var")
STAGE = next((path for path in STAGES if Path(path).is_dir()), STAGES[0])
"""A folder of every machine of which sandboxes show nothing."""


def mount(source: str, name: str, *, readonly: bool = True) -> Mount:
    """One entry of a user's `mounts`: `source` as `name` below `STAGE`."""
    return {
        "source": source,
        "target": f"{STAGE}/{name}",
        "folder": Path(source).is_dir(),
        "readonly": readonly,
        "devices": False,
    }


_owners_shown: dict[int, bool] = {}


def can_show_owners(folder: Path) -> bool:
    """Whether files in there can be shown as another user's, as a spare needs it. Root only."""
    device = folder.stat().st_dev
    if device not in _owners_shown:
        shown = {**mount(str(folder), "0"), "owners": [0, SOMEBODY]}
        plan = {"user": user(SOMEBODY, [shown]), "argv": ["/bin/true"]}
        argv = [sys.executable, "-I", "-S", str(AS_USER)]
        try:
            done = subprocess.run(
                argv,
                input=json.dumps(plan).encode(),
                capture_output=True,
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        _owners_shown[device] = done.returncode == 0
    return _owners_shown[device]


def user(uid: int, mounts: Sequence[Mount]) -> dict[str, Any]:
    """The `user` of a plan for `launcher.py` or `as_user.py`."""
    return {"uid": uid, "at": STAGE, "mounts": list(mounts)}


def staged(plan: SandboxPlan) -> tuple[SandboxPlan, list[Mount]]:
    """The plan with everything that is not the system's taken from `STAGE`, and the mounts to put there."""
    bwrap, mounts = staged_program(plan.bwrap)

    def put(source: str, *, readonly: bool = True) -> str:
        mounts.append(mount(source, str(len(mounts)), readonly=readonly))
        return str(mounts[-1]["target"])

    moved = replace(
        plan,
        bwrap=bwrap,
        readonly=(),
        readonly_at=tuple((put(source), inside) for source, inside in shown_at(plan)),
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


def shown_at(plan: SandboxPlan) -> Sequence[tuple[str, str]]:
    """What is shown read-only, each with its path inside."""
    return (*((path, path) for path in plan.readonly), *plan.readonly_at)


def staged_program(bwrap: str) -> tuple[str, list[Mount]]:
    """bubblewrap's path for another user, and the mounts that it takes.

    That of a package has libraries beside it.
    """
    package = Path(bwrap).parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    if not libraries.is_dir():
        return bwrap, []
    mounts = [mount(str(path), f"program/{path.name}") for path in (package, libraries)]
    return f"{mounts[0]['target']}/{Path(bwrap).parent.name}/{Path(bwrap).name}", mounts
