"""Parser of the operators' command groups, and of acts on many workspaces."""

from __future__ import annotations

import argparse
from typing import Any, cast

from portal.cli.argument_types import hours, moment, positive, verb_of

TIMES = "ISO 8601; without an offset, the time zone of this machine applies"
STATES = ("pending", "provisioning", "running", "stopping", "stopped", "failed")


def bulk(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "Stop, extend or move many workspaces, or write to their owners."
    description = (
        f"{summary} Choose up to 100 workspaces by name or id, or by filters. Shows the result for each, "
        "then asks for confirmation. Exit code 1: a workspace that you named was skipped, or one that the "
        "preview did not skip."
    )
    top = commands.add_parser("bulk", help=summary, description=description)
    verbs = top.add_subparsers(metavar="COMMAND", required=True)

    def verb(name: str, summary: str) -> argparse.ArgumentParser:
        subparser = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        subparser.set_defaults(function=f"bulk_{name.replace('-', '_')}")
        subparser.add_argument(
            "workspaces", nargs="*", metavar="WORKSPACE", help="name of one of your workspaces, or id of any"
        )
        subparser.add_argument("--team", default="", metavar="SLUG", help="of this team only")
        subparser.add_argument("--owner", default="", metavar="USER", help="filter: of this user")
        subparser.add_argument("--state", default="", choices=STATES, help="filter: in this state")
        subparser.add_argument("--flavor", default="", metavar="SLUG", help="filter: of this flavor")
        subparser.add_argument("--pool", default="", metavar="SLUG", help="filter: in this pool")
        subparser.add_argument("--dry-run", action="store_true", help="only show what would happen")
        subparser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
        return cast(argparse.ArgumentParser, subparser)

    verb("stop", "Stop workspaces; files are kept.")
    extend = verb("extend", "Extend the lifetime of running workspaces.")
    extend.add_argument("--hours", type=hours, default=2.0, metavar="H", help="default: 2")
    message = verb("message", "Send a notice to the owners of workspaces, one to each owner.")
    message.add_argument("--text", required=True, metavar="TEXT", help="text of the message")
    move = verb("move", "Move running workspaces to another node of their pool, with notice. For operators.")
    move.add_argument("--to", default="", metavar="NODE", help="default: any other node of the pool")
    move.add_argument("--reason", default="", metavar="TEXT", help="for the owners")
    verb(
        "cancel-move", "Cancel moves that have not begun; the workspaces stay on their nodes. For operators."
    )


def announcements(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "List, create and cancel announcements. Operators create them."
    top = commands.add_parser("announcements", help=summary, description=summary, parents=[common])
    top.set_defaults(function="announcements_ls")
    top.add_argument("--all", action="store_true", help="include ended ones; for operators and auditors")
    verb = verb_of(
        "announcements", top.add_subparsers(metavar="COMMAND"), common, argument="announcement", metavar="ID"
    )
    create = verb("create", "Show a text above every page, and print its id.", named=False)
    create.add_argument("text", metavar="TEXT", help="plain text, up to 500 characters")
    create.add_argument(
        "--kind",
        default="information",
        choices=("information", "warning"),
        help="default: information, which each user can dismiss",
    )
    create.add_argument(
        "--pool", default="", metavar="SLUG", help="only for users who can use this pool; default: everybody"
    )
    create.add_argument("--from", dest="begins_at", type=moment, default=None, metavar="TIME", help=TIMES)
    _add_end(create, required=False)
    verb("cancel", "End an announcement now; id, or its beginning.")


def maintenance(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "Show, begin and end maintenance of the site or a pool. Operators change it."
    top = commands.add_parser("maintenance", help=summary, description=summary)
    verb = verb_of(
        "maintenance", top.add_subparsers(metavar="COMMAND", required=True), common, argument="", metavar=""
    )
    show = verb("show", "Show maintenance in progress or planned; exit code 5 if there is none.", named=False)
    begin = verb("on", "Begin, plan or change maintenance: no new work starts.", named=False)
    end = verb("off", "End maintenance, or cancel planned maintenance.", named=False, confirms=True)
    for subparser in (show, begin, end):
        subparser.add_argument("--pool", default="", metavar="SLUG", help="default: the whole site")
    begin.add_argument("--reason", required=True, metavar="TEXT", help="shown to users")
    begin.add_argument("--from", dest="begins_at", type=moment, default=None, metavar="TIME", help=TIMES)
    _add_end(begin, required=True)


def _add_end(subparser: argparse.ArgumentParser, *, required: bool) -> None:
    ends = subparser.add_mutually_exclusive_group(required=required)
    ends.add_argument("--until", dest="ends_at", type=moment, default=None, metavar="TIME", help=TIMES)
    ends.add_argument("--hours", type=hours, default=None, metavar="H", help="end this long after the start")


def orphans(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "List and delete orphaned processes and folders on nodes. For operators."
    top = commands.add_parser("orphans", help=summary, description=summary, parents=[common])
    top.set_defaults(function="orphans_ls")
    top.add_argument("--pool", default="", metavar="SLUG", help="of this pool only")
    top.add_argument("--node", default="", metavar="NODE", help="on this node only")
    kinds = ("workspace", "process", "control_group", "folder", "home")
    top.add_argument("--kind", default="", choices=kinds, help="of this kind only")
    top.add_argument("--all", action="store_true", help="include recently deleted ones")
    summary = "Delete an orphan, after another check by its node."
    delete = top.add_subparsers(metavar="COMMAND").add_parser(
        "rm", help=summary, description=summary, parents=[common]
    )
    delete.set_defaults(function="orphans_rm")
    delete.add_argument("orphan", metavar="ID", help="id, its beginning, or name")
    delete.add_argument(
        "--confirm", default="", metavar="NAME", help="name of a home folder, as confirmation"
    )
    delete.add_argument("-y", "--yes", action="store_true", help="do not ask; home folders need --confirm")
    delete.add_argument(
        "--wait", action="store_true", help="wait until it is deleted; exit code 1 if it stays"
    )
    delete.add_argument(
        "--timeout", type=positive, default=120, metavar="SECONDS", help="with --wait; default: 120"
    )


def rebalancing(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "List and apply proposals to move running work. For operators."
    top = commands.add_parser("rebalancing", help=summary, description=summary, parents=[common])
    top.set_defaults(function="rebalancing_ls")
    top.add_argument("--all", action="store_true", help="include applied, dismissed and withdrawn ones")
    summary = "Start the moves of a proposal, with notice: all or none."
    act = top.add_subparsers(metavar="COMMAND").add_parser(
        "apply", help=summary, description=summary, parents=[common]
    )
    act.set_defaults(function="rebalancing_apply")
    act.add_argument("proposal", metavar="ID", help="id, or its beginning")
    act.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


ALL = (bulk, announcements, maintenance, orphans, rebalancing)
"""Functions that add a command group, in the order of the help."""
