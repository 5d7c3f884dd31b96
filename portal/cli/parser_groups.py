"""The arguments of the commands that have commands of their own: `berth files ls`, `berth requests ask`."""

from __future__ import annotations

import argparse
from typing import Any, cast

from portal.cli.argument_types import (
    amount_of,
    hours,
    one_workspace,
    port,
    positive,
    wait,
)

GPU_EPILOG = """\
exit codes:
  0  passed          3  inconclusive                 64  wrong usage
  1  degraded        4  no driver, library or GPU
  2  failed          5  hung
With --device or --node also 69, the portal did not do it, and 75, no verdict in time.
"""

NODE_EPILOG = """\
exit codes:
  0  done; for status: all is well
  1  refused, or something has to be put right on this machine
  3  for status: the node's services do not run, or this machine is no node
  4  the portal does not answer, or its answer was lost
"""


def requests(commands: Any, common: argparse.ArgumentParser) -> None:
    words = "List requests for more quota, ask for more, or decide."
    top = commands.add_parser("requests", help=words, description=words, parents=[common])
    top.set_defaults(function="requests_ls")
    top.add_argument("--all", action="store_true", help="those that are decided, too")
    top.add_argument("--team", default="", metavar="SLUG", help="only this team's")
    verbs = top.add_subparsers(metavar="COMMAND")

    def verb(name: str, words: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=words, description=words, parents=[common])
        made.set_defaults(function=f"requests_{name}")
        return cast(argparse.ArgumentParser, made)

    def amount(made: argparse.ArgumentParser, *, required: bool, words: str) -> None:
        made.add_argument(
            "--amount", type=amount_of, required=required, default=None, metavar="N", help=words
        )

    ask = verb("ask", "Ask for more for a team that you are in.")
    ask.add_argument(
        "--resource",
        required=True,
        metavar="NAME",
        help="as `berth quota --json` has it, such as gpu:h100",
    )
    amount(ask, required=True, words="in GPUs, cores, GiB, workspaces or GPU-hours")
    ask.add_argument("--note", required=True, metavar="TEXT", help="for the approver")
    ask.add_argument("--hours", type=hours, default=None, metavar="H", help="for so long; default: for good")
    ask.add_argument("--team", default="", metavar="SLUG", help="default: your only team")
    ask.add_argument(
        "--kind",
        default="quota",
        choices=("quota", "member_cap", "ledger"),
        help="default: quota of the team",
    )
    approve = verb("approve", "Approve a request, whole or less of it. For who decides it.")
    deny = verb("deny", "Deny a request. For who decides it.")
    cancel = verb("cancel", "Cancel a request of your own.")
    for each in (approve, deny, cancel):
        each.add_argument("request", metavar="ID", help="its id, or the beginning of it")
    amount(approve, required=False, words="less than was asked for")
    approve.add_argument("--hours", type=hours, default=None, metavar="H", help="for so long from now")
    approve.add_argument("--note", default="", metavar="TEXT", help="who asked reads it")
    deny.add_argument("--note", required=True, metavar="TEXT", help="for the requester")


def user(commands: Any, common: argparse.ArgumentParser) -> None:
    user = commands.add_parser(
        "user", help="Manage people.", description="Manage people. For administrators."
    )
    verbs = user.add_subparsers(metavar="COMMAND", required=True)

    def verb(name: str, words: str, *, named: bool = True, asks: bool = False) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=words, description=words, parents=[common])
        made.set_defaults(function=f"user_{name}")
        if named:
            made.add_argument("username", metavar="NAME")
        if asks:
            made.add_argument("-y", "--yes", action="store_true", help="do not ask")
        return cast(argparse.ArgumentParser, made)

    listed = verb("ls", "List accounts.", named=False)
    listed.add_argument("search", nargs="?", default="", help="words in name or address")
    listed.add_argument("--state", default="", choices=("invited", "active", "deactivated"))
    listed.add_argument(
        "--second-factor", default="", choices=("none", "totp", "passkey"), help="who has set this up"
    )
    invite = verb("invite", "Make an account and print the link by which its user chooses a password.")
    invite.add_argument("--email", default="", metavar="ADDRESS")
    invite.add_argument("--team", action="append", default=[], metavar="SLUG", help="may be repeated")
    place = invite.add_mutually_exclusive_group()
    place.add_argument("--owner", action="store_true", help="as owner of these teams")
    place.add_argument("--viewer", action="store_true", help="as viewer of these teams")
    invite.add_argument(
        "--role", action="append", default=[], choices=("administrator", "operator", "approver", "auditor")
    )
    leave = verb("deactivate", "End all that somebody may do; workspaces stop, files stay.", asks=True)
    leave.add_argument("--note", default="", help="for the audit log")
    verb("reactivate", "Give an account back.")
    gone = verb("rm", "Delete an account for good.", asks=True)
    gone.add_argument("--workspaces", action="store_true", help="delete the user's workspaces too")
    gone.add_argument("--homes", action="store_true", help="delete the home folders too; else they stay")


def files(commands: Any, common: argparse.ArgumentParser) -> None:
    words = "Your files in a workspace's home, whether it runs or not."
    verbs = commands.add_parser("files", help=words, description=words).add_subparsers(
        metavar="COMMAND", required=True
    )

    def verb(name: str, words: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=words, description=words, parents=[common])
        made.set_defaults(function=f"files_{name}")
        one_workspace(made)
        return cast(argparse.ArgumentParser, made)

    listed = verb("ls", "List a folder.")
    listed.add_argument("path", nargs="?", default="", metavar="PATH", help="default: the home folder")
    get = verb("get", "Fetch a file, or a folder with --as.")
    get.add_argument("path", metavar="PATH")
    get.add_argument("--as", dest="form", default="", choices=("tar", "zip"), help="for a folder")
    get.add_argument("--to", default="", metavar="FILE", help="default: its own name, here")
    get.add_argument("-f", "--force", action="store_true", help="replace what is there")
    put = verb("put", "Send files.")
    put.add_argument("files", nargs="+", metavar="FILE")
    put.add_argument("--into", default="", metavar="PATH", help="a folder; default: the home folder")
    put.add_argument("-f", "--force", action="store_true", help="replace what is there")
    words = "Copy files between here and a workspace's home, whether it runs or not."
    copy = commands.add_parser(
        "cp",
        help=words,
        description=f"{words} The workspace's side is NAME:PATH; a path here that has a colon begins with ./",
        usage="berth cp [-r] [-f] FILE … NAME:FOLDER, or berth cp [-r] [-f] [--as tar|zip] NAME:PATH FILE",
        parents=[common],
    )
    copy.set_defaults(function="cp")
    copy.add_argument(
        "paths", nargs="+", metavar="PATH", help="one of them, the last or the only other, is NAME:PATH"
    )
    copy.add_argument("--team", default="", metavar="SLUG", help="where you have the name in two teams")
    copy.add_argument(
        "-r", "--recursive", action="store_true", help="folders too, with all in them but symbolic links"
    )
    copy.add_argument(
        "--as", dest="form", default="", choices=("tar", "zip"), help="for a folder of a workspace"
    )
    copy.add_argument("-f", "--force", action="store_true", help="replace what is there")
    rm = verb("rm", "Delete files and folders, for good.")
    rm.add_argument("paths", nargs="+", metavar="PATH")
    rm.add_argument("-y", "--yes", action="store_true", help="do not ask")
    archives(verbs, common)


def archives(commands: Any, common: argparse.ArgumentParser) -> None:
    words = "Archives of the home, which keep all of it; made and restored while no workspace uses it."
    verbs = commands.add_parser("archives", help=words, description=words).add_subparsers(
        metavar="COMMAND", required=True
    )

    def verb(name: str, words: str, *, named: bool = True, asks: bool = False) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=words, description=words, parents=[common])
        made.set_defaults(function=f"archives_{name}")
        one_workspace(made)
        if named:
            made.add_argument("archive", metavar="ARCHIVE", help="its name or id")
        if asks:
            made.add_argument("-y", "--yes", action="store_true", help="do not ask")
        return cast(argparse.ArgumentParser, made)

    verb("ls", "List them, the newest first.", named=False)
    make = verb("make", "Make one of all that is in the home.", named=False)
    make.add_argument("--name", default="", help="default: the time")
    wait(make, "until it is ready; 1 where it fails")
    wait(verb("restore", "Replace all that is in the home.", asks=True), "until it is done; 1 where it fails")
    verb("cancel", "Give up what is under way; the home is as it was.")
    wait(verb("rm", "Delete one, for good.", asks=True), "until it has gone")


def homes(commands: Any, common: argparse.ArgumentParser) -> None:
    words = "List home folders, keep unused ones, restore archived ones; move them between machines."
    verbs = commands.add_parser("homes", help=words, description=words).add_subparsers(
        metavar="COMMAND", required=True
    )
    words = "List your home folders: for how long they were not used, what follows, which are archived."
    listed = verbs.add_parser("ls", help=words, description=words, parents=[common])
    listed.set_defaults(function="homes_ls")
    listed.add_argument("--archived", action="store_true", help="only those that are archived")
    listed.add_argument("--all", action="store_true", help="everybody's, for operators and auditors")
    for name, words in (
        ("keep", "Keep a home folder that is announced to be archived, or the archive of one that is."),
        ("restore", "Restore an archived home folder, and wait until it is there."),
    ):
        one = verbs.add_parser(name, help=words, description=words, parents=[common])
        one.set_defaults(function=f"homes_{name}")
        one.add_argument("team", metavar="TEAM", help="short name of the team whose home folder it is")
        one.add_argument("--pool", default="", metavar="SLUG", help="where you have one in several pools")
        one.add_argument("--owner", default="", metavar="NAME", help="whose; for operators")
        if name == "restore":
            one.add_argument("--no-wait", action="store_true", help="leave it going")
    words = "Move all home folders of a machine to another one, and wait; the same command goes on with it."
    made = verbs.add_parser("move", help=words, description=words, parents=[common])
    made.set_defaults(function="homes_move")
    made.add_argument("node", metavar="NODE", help="the machine where they lie")
    made.add_argument("--to", default="", metavar="NODE", help="the machine to which they go")
    made.add_argument("--pool", default="", metavar="SLUG", help="where several pools have this machine")
    made.add_argument("--dry-run", action="store_true", help="only say what lies there and can be moved")
    made.add_argument("--no-wait", action="store_true", help="leave it going")
    made.add_argument("-y", "--yes", action="store_true", help="do not ask")


def orphans(commands: Any, common: argparse.ArgumentParser) -> None:
    words = "List what lies on nodes and nobody owns, or remove it. For operators."
    top = commands.add_parser("orphans", help=words, description=words, parents=[common])
    top.set_defaults(function="orphans_ls")
    top.add_argument("--pool", default="", metavar="SLUG", help="only of this pool")
    top.add_argument("--node", default="", metavar="NODE", help="only on this node")
    kinds = ("workspace", "process", "control_group", "folder", "home")
    top.add_argument("--kind", default="", choices=kinds, help="only these")
    top.add_argument("--all", action="store_true", help="also what has gone of late")
    words = "Have its node remove one; the node looks once more whether anybody owns it."
    gone = top.add_subparsers(metavar="COMMAND").add_parser(
        "rm", help=words, description=words, parents=[common]
    )
    gone.set_defaults(function="orphans_rm")
    gone.add_argument("orphan", metavar="ID", help="its id, the beginning of it, or its name")
    gone.add_argument("--confirm", default="", metavar="NAME", help="of a home folder: its name, typed")
    gone.add_argument("-y", "--yes", action="store_true", help="do not ask; of a home folder, see --confirm")
    gone.add_argument(
        "--wait", action="store_true", help="until it is gone; 1 where it stays, with the reason"
    )
    gone.add_argument("--timeout", type=positive, default=120, metavar="SECONDS", help="of waiting; 120")


def service_account(commands: Any, common: argparse.ArgumentParser) -> None:
    words = "Manage accounts for programs."
    top = commands.add_parser("service-account", help=words, description=f"{words} For owners of their team.")
    verbs = top.add_subparsers(metavar="COMMAND", required=True)

    def verb(name: str, words: str, *, named: bool = True, asks: bool = False) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=words, description=words, parents=[common])
        made.set_defaults(function=f"service_account_{name}")
        if named:
            made.add_argument("username", metavar="NAME", help="with or without its svc-")
        made.add_argument("--team", default="", metavar="SLUG", help="default: your only team")
        if asks:
            made.add_argument("-y", "--yes", action="store_true", help="do not ask")
        return cast(argparse.ArgumentParser, made)

    verb("ls", "List service accounts; without --team those of all your teams.", named=False)
    create = verb("create", "Make a service account and print its name.")
    create.add_argument("--description", default="", metavar="TEXT", help="what it is for")
    leave = verb("deactivate", "End its tokens and stop its workspaces; files stay.", asks=True)
    leave.add_argument("--note", default="", help="for the audit log")
    verb("reactivate", "Give it back; it needs new tokens.")
    verb("tokens", "List its tokens, without their secrets.")
    issue = verb("issue", "Make a token and print its secret, this once.")
    issue.add_argument("purpose", metavar="PURPOSE", help="what the token is for")
    issue.add_argument("--days", type=positive, default=0, metavar="D", help="how long it lives")
    issue.add_argument(
        "--scope",
        action="append",
        default=[],
        metavar="SCOPE",
        help="may be repeated; default: those of the token that asks",
    )
    rotate = verb("rotate", "Make a token in the place of another and print its secret, this once.")
    revoke = verb("revoke", "End a token at once.", asks=True)
    for each in (rotate, revoke):
        each.add_argument("token", metavar="TOKEN", help="its beginning, id or name, as `tokens` lists it")
    rotate.add_argument(
        "--overlap-hours",
        type=int,
        default=24,
        metavar="H",
        help="for how long the old one works on; default: 24",
    )


def secret(commands: Any, common: argparse.ArgumentParser) -> None:
    words = "Keep secrets for workspaces: your own, a team's, a template's."
    top = commands.add_parser("secret", help=words, description=words)
    verbs = top.add_subparsers(metavar="COMMAND", required=True)

    def verb(name: str, words: str, *, named: bool = True) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=words, description=words, parents=[common])
        made.set_defaults(function=f"secret_{name}")
        if named:
            made.add_argument("name", metavar="NAME", help="that of a variable, as WANDB_API_KEY")
        of = made.add_mutually_exclusive_group()
        of.add_argument("--team", default="", metavar="SLUG", help="a team's; default: your own")
        of.add_argument("--template", default="", metavar="SLUG", help="a template's")
        return cast(argparse.ArgumentParser, made)

    verb("ls", "List names and facts; nobody reads a value again.", named=False)
    put = verb("set", "Save the value that comes on standard input; one new line at its end is left out.")
    put.add_argument("--file", action="store_true", help="it comes as a file, and is taken as it is")
    put.add_argument(
        "--vault",
        default="",
        metavar="PATH#KEY",
        help="Vault keeps the value, there; nothing is read from standard input",
    )
    put.add_argument("--description", default=None, metavar="TEXT", help="what it is for")
    put.add_argument("--everywhere", action="store_true", help="every workspace gets it, unnamed")
    gone = verb("rm", "Delete a secret.")
    gone.add_argument("-y", "--yes", action="store_true", help="do not ask")


def environments(commands: Any, common: argparse.ArgumentParser) -> None:
    words = "List software environments, or build one."
    top = commands.add_parser("environments", help=words, description=words, parents=[common])
    top.add_argument("--team", default="", metavar="SLUG", help="only this team's")
    top.set_defaults(function="environments_ls")
    verbs = top.add_subparsers(metavar="COMMAND")
    words = "Build an environment: of a file as its next version, or of what it asks for already, anew."
    build = verbs.add_parser("build", help=words, description=words, parents=[common])
    build.set_defaults(function="environments_build")
    build.add_argument("name", metavar="NAME", help="its short name; one that there is not is made")
    build.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="FILE",
        help="requirements.txt, pyproject.toml or a lock with hashes; “-” is standard input",
    )
    build.add_argument(
        "--team", default="", metavar="SLUG", help="whose it is when it is made; else everybody's"
    )
    build.add_argument("--python", default="", metavar="VERSION", help="as 3.12; else as it is")
    build.add_argument(
        "--wait", action="store_true", help="until it is ready; 1 where it fails, with the line"
    )
    build.add_argument(
        "--timeout", type=positive, default=3600, metavar="SECONDS", help="of waiting; default: 3600"
    )


def gpu(commands: Any, common: argparse.ArgumentParser) -> None:
    gpu = commands.add_parser("gpu", help="Check GPUs.", description="Check GPUs.")
    verbs = gpu.add_subparsers(metavar="COMMAND", required=True)
    words = "Check the GPUs of this machine, or one that the portal knows."
    check = verbs.add_parser(
        "check",
        help=words,
        description=words,
        parents=[common],
        epilog=GPU_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.set_defaults(function="gpu_check")
    check.add_argument("--uuid", default="", metavar="UUID", help="of this machine; default: all of them")
    check.add_argument(
        "--device", default="", metavar="UUID", help="through the portal: on the node where it is"
    )
    check.add_argument(
        "--node", default="", metavar="NAME", help="through the portal: the link of this node to another one"
    )
    check.add_argument("--with", dest="with_node", default="", metavar="NAME", help="the other node")
    check.add_argument("--level", choices=("quick", "standard", "extended"), default="quick")
    check.add_argument(
        "--timeout", type=positive, default=3600, metavar="SECONDS", help="of waiting for the portal"
    )


def node(commands: Any, common: argparse.ArgumentParser) -> None:
    words = "This machine as a node of a portal on another one."
    top = commands.add_parser(
        "node",
        help=words,
        description=words,
        epilog=NODE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(metavar="COMMAND", required=True)

    def verb(name: str, words: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=words, description=words, parents=[common])
        # Its lines are written again in place; what came from elsewhere is made harmless where it comes in.
        made.set_defaults(function=f"node_{name.replace('-', '_')}", raw=True)
        made.add_argument(
            "--home", default="", metavar="DIR", help="its folder; default: BERTH_HOME, or the usual place"
        )
        return cast(argparse.ArgumentParser, made)

    join = verb("join", "Make this machine a node, with the token of a pool's page.")
    join.add_argument("url", metavar="URL", help="of the machines' door, as the pool's page has it")
    join.add_argument("--token", required=True, help="used once; - reads it from standard input")
    join.add_argument("--name", default="", help="of the node; default: this machine's")
    join.add_argument("--address", default="", metavar="HOST", help="default: where it connects from")
    join.add_argument(
        "--gateway-port", type=port, default=8646, metavar="N", help="where workspaces are entered; 8646"
    )
    join.add_argument("--no-service", action="store_true", help="write no unit of systemd")
    join.add_argument("--no-environment", action="store_true", help="leave what notebooks run in for later")
    verb("run", "Run the node's services, as its unit of systemd does, until told to end.")
    verb("status", "Say whether this node is connected and well.")
    verb("rotate", "Change its keys and certificate now; it does so by itself in time.")
    leave = verb("leave", "Leave the portal, and remove the keys; homes stay.")
    leave.add_argument(
        "--forget", action="store_true", help="only here: the portal is away or knows it no more"
    )
    there = leave.add_mutually_exclusive_group()
    there.add_argument(
        "--drain",
        action="store_const",
        const="drain",
        dest="workspaces",
        help="its workspaces go elsewhere first",
    )
    there.add_argument(
        "--stop", action="store_const", const="stop", dest="workspaces", help="its workspaces are ended first"
    )
    leave.set_defaults(workspaces="")
    verb("environment", "Make the environment that notebooks run in.")
    tried = verb("try-suspend", "Find out whether this machine can suspend GPU work to host memory.")
    tried.add_argument(
        "--device", default="", metavar="UUID", help="an idle GPU; default: the first idle one"
    )
    tried.add_argument("--onto", default="", metavar="UUID", help="restore on this one, of the same model")
    for name, words in (
        ("suspend", "Have a workspace here give its GPUs away and keep its variables."),
        ("resume", "Bring a suspended workspace back to its GPUs."),
    ):
        verb(name, words).add_argument("workspace", metavar="ID", help="of the workspace, as its page has it")


def rebalancing(commands: Any, common: argparse.ArgumentParser) -> None:
    words = "List proposals to move running work, or apply one. For operators."
    top = commands.add_parser("rebalancing", help=words, description=words, parents=[common])
    top.set_defaults(function="rebalancing_ls")
    top.add_argument(
        "--all", action="store_true", help="also those that were applied, dismissed or withdrawn"
    )
    words = "Have its workspaces asked to move, with notice: all of them or none."
    act = top.add_subparsers(metavar="COMMAND").add_parser(
        "apply", help=words, description=words, parents=[common]
    )
    act.set_defaults(function="rebalancing_apply")
    act.add_argument("proposal", metavar="ID", help="its id, or the beginning of it")
    act.add_argument("-y", "--yes", action="store_true", help="do not ask")


ALL = (requests, user, service_account, secret, environments, files, homes, orphans, rebalancing, gpu, node)
"""Each adds its group to the commands, in the order of the help."""
