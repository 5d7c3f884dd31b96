"""`up`, `down`, `status`, `backup` and other commands, which the Makefile and manage.py use."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from portal.embedded import backup as backups
from portal.embedded import configs, control, preflight
from portal.embedded.environment import Instance
from portal.embedded.up import Up
from provisioning.service import home
from provisioning.service.console import Console, Problem
from provisioning.service.environ import UP
from provisioning.service.notebook import Builder


def main(argv: Sequence[str]) -> int:
    """Run one command, and return its exit code. Prints a problem as one line, never a traceback."""
    parser = argparse.ArgumentParser(prog="portal.embedded", description="Run Berth on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start everything and stay in the foreground")
    down = commands.add_parser("down", help="stop what `up` started")
    for command in (up, down):
        command.add_argument(
            "--keep-workspaces", action="store_true", help="keep workspaces running after a stop"
        )
    commands.add_parser("status", help="show services; exit code: 0 all run, 1 some, 3 none")
    backup = commands.add_parser("backup", help="copy database, secrets and keys into a new folder")
    backup.add_argument("folder", type=Path, help="new folder")
    back = commands.add_parser("restore", help="restore a backup")
    back.add_argument("folder", type=Path, help="folder of the backup")
    back.add_argument("--replace", action="store_true", help="move an existing instance aside")
    commands.add_parser("render", help="write the configuration of the servers, for compose.yaml")
    commands.add_parser("notebook", help="create the notebook environment")
    options = parser.parse_args(argv)
    console = Console()
    try:
        instance = Instance.from_environ(os.environ)
        match options.command:
            case "up":
                return Up(instance, os.environ, console, keep_workspaces=options.keep_workspaces).run()
            case "down":
                return control.down(instance, console, keep_workspaces=options.keep_workspaces)
            case "status":
                return control.status(instance, os.environ, console)
            case "backup":
                return backups.back_up(instance, os.environ, options.folder, console)
            case "restore":
                return backups.restore(instance, os.environ, options.folder, console, replace=options.replace)
            case "render":
                return render(instance, os.environ, console)
            case _:
                return notebook(instance, console)
    except Problem as problem:
        console.complain(problem)
        return 1
    except KeyboardInterrupt:
        console.say()
        console.say(f"  Stopped before everything had started. `{UP}` continues from here.")
        return 130


def notebook(instance: Instance, console: Console) -> int:
    """Create the notebook environment and print its location."""
    home.check_platform()
    preflight.prepare_home(instance.home)
    with console.step("Notebook environment") as step:
        builder = Builder(instance.environments_dir, instance.logs_dir, os.environ)
        builder.start()
        step.result = builder.wait(step.update)
    return 0


def render(instance: Instance, environ: Mapping[str, str], console: Console) -> int:
    """Write the configuration of Redis and the front door, with secrets from the environment."""
    variables = {
        "gateway_secret": "BERTH_GATEWAY_SECRET",
        "redis_control": "BERTH_REDIS_PASSWORD",
        "redis_node": "BERTH_NODE_REDIS_PASSWORD",
        "control_key": "BERTH_CONTROL_KEY",
        "node_key": "BERTH_NODE_KEY",
    }
    missing = [name for name in variables.values() if not environ.get(name)]
    if missing:
        raise Problem(f"{', '.join(missing)} must be set.", "Copy deploy.env.example and fill it in.")
    secrets = {name: environ[variable] for name, variable in variables.items()}
    preflight.prepare_home(instance.home)
    configs.write(instance, secrets)
    console.say(f"  ✓ Written to {instance.run_dir}")
    return 0
