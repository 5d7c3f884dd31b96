"""Parser of the command groups, such as `berth files ls` and `berth requests ask`."""

from __future__ import annotations

import argparse
from typing import Any, cast

from portal.cli.argument_types import (
    add_workspace_argument,
    amount_of,
    hours,
    port,
    positive,
    verb_of,
    wait,
)

GPU_EPILOG = """\
exit codes:
  0  passed          3  inconclusive                 64  wrong usage
  1  degraded        4  no driver, library or GPU
  2  failed          5  hung
With --device or --node also: 69 not run by the portal, 75 timeout.
"""

NODE_EPILOG = """\
exit codes:
  0  done; for status: healthy
  1  error, or a problem on this machine
  3  for status: services do not run, or this machine is not a node
  4  the portal does not answer
"""


def requests(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "List, create and decide requests for quota."
    top = commands.add_parser("requests", help=summary, description=summary, parents=[common])
    top.set_defaults(function="requests_ls")
    top.add_argument("--all", action="store_true", help="include decided ones")
    top.add_argument("--team", default="", metavar="SLUG", help="of this team only")
    verbs = top.add_subparsers(metavar="COMMAND")

    def verb(name: str, summary: str) -> argparse.ArgumentParser:
        subparser = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        subparser.set_defaults(function=f"requests_{name}")
        return cast(argparse.ArgumentParser, subparser)

    def amount(subparser: argparse.ArgumentParser, *, required: bool, help_text: str) -> None:
        subparser.add_argument(
            "--amount", type=amount_of, required=required, default=None, metavar="N", help=help_text
        )

    ask = verb("ask", "Request quota for your team.")
    ask.add_argument(
        "--resource",
        required=True,
        metavar="NAME",
        help="as in `berth quota --json`, for example gpu:h100",
    )
    amount(ask, required=True, help_text="GPUs, cores, GiB, workspaces or GPU-hours")
    ask.add_argument("--note", required=True, metavar="TEXT", help="for the approver")
    ask.add_argument("--hours", type=hours, default=None, metavar="H", help="duration; default: permanent")
    ask.add_argument("--team", default="", metavar="SLUG", help="default: your only team")
    ask.add_argument(
        "--kind",
        default="quota",
        choices=("quota", "member_cap", "ledger"),
        help="default: quota of the team",
    )
    approve = verb("approve", "Approve a request in full or in part. For its approvers.")
    deny = verb("deny", "Deny a request. For its approvers.")
    cancel = verb("cancel", "Cancel your own request.")
    for subparser in (approve, deny, cancel):
        subparser.add_argument("request", metavar="ID", help="id, or its beginning")
    amount(approve, required=False, help_text="approve less")
    approve.add_argument("--hours", type=hours, default=None, metavar="H", help="duration from now")
    approve.add_argument("--note", default="", metavar="TEXT", help="for the requester")
    deny.add_argument("--note", required=True, metavar="TEXT", help="for the requester")


def user(commands: Any, common: argparse.ArgumentParser) -> None:
    user = commands.add_parser(
        "user", help="Manage accounts.", description="Manage accounts. For administrators."
    )
    verbs = user.add_subparsers(metavar="COMMAND", required=True)

    verb = verb_of("user", verbs, common, "username", "NAME")

    list_parser = verb("ls", "List accounts.", named=False)
    list_parser.add_argument("search", nargs="?", default="", help="part of name or address")
    list_parser.add_argument("--state", default="", choices=("invited", "active", "deactivated"))
    list_parser.add_argument(
        "--second-factor", default="", choices=("none", "totp", "passkey"), help="accounts with this factor"
    )
    invite = verb("invite", "Create an account and print the invitation link.")
    invite.add_argument("--email", default="", metavar="ADDRESS")
    invite.add_argument("--team", action="append", default=[], metavar="SLUG", help="repeatable")
    place = invite.add_mutually_exclusive_group()
    place.add_argument("--owner", action="store_true", help="as owner of these teams")
    place.add_argument("--viewer", action="store_true", help="as viewer of these teams")
    invite.add_argument(
        "--role", action="append", default=[], choices=("administrator", "operator", "approver", "auditor")
    )
    leave = verb("deactivate", "Deactivate an account; workspaces stop, files are kept.", confirms=True)
    leave.add_argument("--note", default="", help="for the audit log")
    verb("reactivate", "Reactivate an account.")
    delete = verb("rm", "Delete an account.", confirms=True)
    delete.add_argument("--workspaces", action="store_true", help="also delete the user's workspaces")
    delete.add_argument("--homes", action="store_true", help="also delete the home folders")


def files(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "Manage files in a workspace's home folder, even while the workspace is stopped."
    verbs = commands.add_parser("files", help=summary, description=summary).add_subparsers(
        metavar="COMMAND", required=True
    )

    def verb(name: str, summary: str) -> argparse.ArgumentParser:
        subparser = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        subparser.set_defaults(function=f"files_{name}")
        add_workspace_argument(subparser)
        return cast(argparse.ArgumentParser, subparser)

    list_parser = verb("ls", "List a folder.")
    list_parser.add_argument("path", nargs="?", default="", metavar="PATH", help="default: the home folder")
    get = verb("get", "Download a file, or a folder with --as.")
    get.add_argument("path", metavar="PATH")
    get.add_argument(
        "--as", dest="form", default="", choices=("tar", "zip"), help="archive format for a folder"
    )
    get.add_argument("--to", default="", metavar="FILE", help="default: the same name in the current folder")
    get.add_argument("-f", "--force", action="store_true", help="replace existing files")
    put = verb("put", "Upload files.")
    put.add_argument("files", nargs="+", metavar="FILE")
    put.add_argument("--into", default="", metavar="PATH", help="target folder; default: the home folder")
    put.add_argument("-f", "--force", action="store_true", help="replace existing files")
    summary = "Copy files to or from a workspace's home folder, even while the workspace is stopped."
    copy = commands.add_parser(
        "cp",
        help=summary,
        description=f"{summary} NAME:PATH is in the workspace; "
        "start local paths that contain a colon with ./",
        usage="berth cp [-r] [-f] FILE … NAME:FOLDER, or berth cp [-r] [-f] [--as tar|zip] NAME:PATH FILE",
        parents=[common],
    )
    copy.set_defaults(function="cp")
    copy.add_argument("paths", nargs="+", metavar="PATH", help="sources and target; one side is NAME:PATH")
    copy.add_argument(
        "--team", default="", metavar="SLUG", help="slug of the team, if you use the name in several teams"
    )
    copy.add_argument("-r", "--recursive", action="store_true", help="copy folders, without symbolic links")
    copy.add_argument(
        "--as", dest="form", default="", choices=("tar", "zip"), help="download a folder as an archive"
    )
    copy.add_argument("-f", "--force", action="store_true", help="replace existing files")
    rm = verb("rm", "Delete files and folders permanently.")
    rm.add_argument("paths", nargs="+", metavar="PATH")
    rm.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    archives(verbs, common)


def archives(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "Manage archives of the home folder. Creating and restoring require that no workspace uses it."
    verbs = commands.add_parser("archives", help=summary, description=summary).add_subparsers(
        metavar="COMMAND", required=True
    )

    def verb(
        name: str, summary: str, *, named: bool = True, confirms: bool = False
    ) -> argparse.ArgumentParser:
        subparser = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        subparser.set_defaults(function=f"archives_{name}")
        add_workspace_argument(subparser)
        if named:
            subparser.add_argument("archive", metavar="ARCHIVE", help="name or id")
        if confirms:
            subparser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
        return cast(argparse.ArgumentParser, subparser)

    verb("ls", "List archives, newest first.", named=False)
    make = verb("make", "Create an archive of the home folder.", named=False)
    make.add_argument("--name", default="", help="default: the current time")
    wait(make, "wait until it is ready; exit code 1 if it fails")
    wait(
        verb("restore", "Replace the home folder with an archive.", confirms=True),
        "wait until it is done; exit code 1 if it fails",
    )
    verb("cancel", "Cancel a running operation; the home folder is unchanged.")
    wait(verb("rm", "Delete an archive permanently.", confirms=True), "wait until it is deleted")


def homes(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "List, keep, restore and move home folders."
    verbs = commands.add_parser("homes", help=summary, description=summary).add_subparsers(
        metavar="COMMAND", required=True
    )
    summary = "List your home folders with last use, next step and archives."
    list_parser = verbs.add_parser("ls", help=summary, description=summary, parents=[common])
    list_parser.set_defaults(function="homes_ls")
    list_parser.add_argument("--archived", action="store_true", help="archived home folders only")
    list_parser.add_argument("--all", action="store_true", help="of all users; for operators and auditors")
    for name, summary in (
        ("keep", "Keep an unused home folder or its archive."),
        ("restore", "Restore an archived home folder and wait."),
    ):
        home_parser = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        home_parser.set_defaults(function=f"homes_{name}")
        home_parser.add_argument("team", metavar="TEAM", help="slug of the team")
        home_parser.add_argument(
            "--pool",
            default="",
            metavar="SLUG",
            help="slug of the pool, if you have home folders in several pools",
        )
        home_parser.add_argument(
            "--owner", default="", metavar="NAME", help="owner of the home folder; for operators"
        )
        if name == "restore":
            home_parser.add_argument("--no-wait", action="store_true", help="do not wait")
    summary = "Move all home folders of a machine to another and wait. Repeat the command to continue."
    subparser = verbs.add_parser("move", help=summary, description=summary, parents=[common])
    subparser.set_defaults(function="homes_move")
    subparser.add_argument("node", metavar="NODE", help="current machine")
    subparser.add_argument("--to", default="", metavar="NODE", help="target machine")
    subparser.add_argument(
        "--pool",
        default="",
        metavar="SLUG",
        help="slug of the pool, if several pools have a machine of this name",
    )
    subparser.add_argument("--dry-run", action="store_true", help="only show what would be moved")
    subparser.add_argument("--no-wait", action="store_true", help="do not wait")
    subparser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def teams(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "List and manage teams."
    description = f"{summary} Owners manage their teams; operators also create and delete teams."
    top = commands.add_parser("teams", help=summary, description=description)
    verbs = top.add_subparsers(metavar="COMMAND", required=True)

    verb = verb_of("teams", verbs, common, "team", "SLUG")

    verb("list", "List the teams that you can see.", named=False).set_defaults(function="teams_show_list")
    verb("show", "Show a team and its members.")
    create = verb("create", "Create a team and print its slug. For operators.")
    create.add_argument("--name", default="", metavar="NAME", help="default: the slug")
    create.add_argument("--owner", default="", metavar="USER", help="first owner; default: you")
    rename = verb("rename", "Change the name of a team; the slug does not change.")
    rename.add_argument("name", metavar="NAME")
    shares = verb("member-shares", "Set whether members take turns in the queue by recent use.")
    shares.add_argument("state", choices=["on", "off"])
    verb("archive", "Archive a team: stop its workspaces and allow no new ones.", confirms=True)
    verb("restore", "Restore an archived team.")
    delete = verb("delete", "Delete an archived team permanently. For operators.", confirms=True)
    delete.add_argument("--homes", action="store_true", help="also delete its home folders, if there are any")
    delete.add_argument("--dry-run", action="store_true", help="only show what the team has")
    wait(delete, "wait until its slug can be used again")


def service_account(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "Manage service accounts."
    top = commands.add_parser("service-account", help=summary, description=f"{summary} For team owners.")
    verbs = top.add_subparsers(metavar="COMMAND", required=True)

    def verb(
        name: str, summary: str, *, named: bool = True, confirms: bool = False
    ) -> argparse.ArgumentParser:
        subparser = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        subparser.set_defaults(function=f"service_account_{name.replace('-', '_')}")
        if named:
            subparser.add_argument("username", metavar="NAME", help="service account, with or without svc-")
        team = "default: your only team" if named else "default: all your teams"
        subparser.add_argument("--team", default="", metavar="SLUG", help=team)
        if confirms:
            subparser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
        return cast(argparse.ArgumentParser, subparser)

    verb("ls", "List service accounts.", named=False)
    create = verb("create", "Create a service account and print its name.")
    create.add_argument("--description", default="", metavar="TEXT", help="purpose")
    leave = verb(
        "deactivate",
        "Deactivate a service account: revoke its tokens and stop its workspaces.",
        confirms=True,
    )
    leave.add_argument("--note", default="", help="for the audit log")
    verb("reactivate", "Reactivate a service account, which needs new tokens.")
    verb("tokens", "List the tokens of a service account, without secrets.")
    issue = verb("issue", "Create a token and print its secret, which is shown only once.")
    issue.add_argument("purpose", metavar="PURPOSE", help="purpose of the token")
    issue.add_argument("--days", type=positive, default=0, metavar="D", help="lifetime in days")
    issue.add_argument(
        "--scope",
        action="append",
        default=[],
        metavar="SCOPE",
        help="repeatable; default: the scopes of your token",
    )
    rotate = verb("rotate", "Replace a token and print the new secret, which is shown only once.")
    revoke = verb("revoke", "Revoke a token.", confirms=True)
    for subparser in (rotate, revoke):
        subparser.add_argument("token", metavar="TOKEN", help="beginning, id or name, as in `tokens`")
    rotate.add_argument(
        "--overlap-hours",
        type=int,
        default=24,
        metavar="H",
        help="hours until the old token expires; default: 24",
    )
    verb("trust-rules", "List the trust rules of a service account.")
    trust = verb("trust", "Exchange tokens of a pipeline for tokens of a service account.")
    trust.add_argument("rule", metavar="RULE", help="name of the new trust rule")
    trust.add_argument("--issuer", required=True, metavar="URL", help="claim iss, as the operator allows it")
    trust.add_argument("--audience", default="", metavar="TEXT", help="claim aud; default: the portal's URL")
    trust.add_argument(
        "--condition",
        action="append",
        required=True,
        metavar="TEXT",
        help="“ref = refs/heads/main”, or “ref ~ refs/heads/*” for a pattern; repeatable, all must match",
    )
    trust.add_argument(
        "--scope", action="append", required=True, metavar="SCOPE", help="of the issued tokens; repeatable"
    )
    trust.add_argument(
        "--minutes", type=positive, default=10, metavar="M", help="lifetime of the tokens; default: 10"
    )
    untrust = verb("untrust", "Delete a trust rule.", confirms=True)
    untrust.add_argument("rule", metavar="RULE", help="name, id or its beginning, as in `trust-rules`")


def secret(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "Manage your secrets, or those of a team or template."
    top = commands.add_parser("secret", help=summary, description=summary)
    verbs = top.add_subparsers(metavar="COMMAND", required=True)

    def verb(name: str, summary: str, *, named: bool = True) -> argparse.ArgumentParser:
        subparser = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        subparser.set_defaults(function=f"secret_{name}")
        if named:
            subparser.add_argument(
                "name", metavar="NAME", help="name of a variable, for example WANDB_API_KEY"
            )
        of = subparser.add_mutually_exclusive_group()
        of.add_argument("--team", default="", metavar="SLUG", help="secret of a team; default: your own")
        of.add_argument("--template", default="", metavar="SLUG", help="secret of a template")
        return cast(argparse.ArgumentParser, subparser)

    verb("ls", "List secrets, without values.", named=False)
    put = verb("set", "Save a value from standard input, without a final newline.")
    put.add_argument("--file", action="store_true", help="provide it as a file, unchanged")
    put.add_argument(
        "--vault",
        default="",
        metavar="PATH#KEY",
        help="read the value from Vault at each start",
    )
    put.add_argument("--description", default=None, metavar="TEXT", help="purpose")
    put.add_argument("--everywhere", action="store_true", help="provide it to all workspaces")
    delete = verb("rm", "Delete a secret.")
    delete.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def environments(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "List and build software environments."
    top = commands.add_parser("environments", help=summary, description=summary, parents=[common])
    top.add_argument("--team", default="", metavar="SLUG", help="of this team only")
    top.set_defaults(function="environments_ls")
    verbs = top.add_subparsers(metavar="COMMAND")
    summary = "Build a version of an environment from a file, or again from its current source."
    build = verbs.add_parser("build", help=summary, description=summary, parents=[common])
    build.set_defaults(function="environments_build")
    build.add_argument("name", metavar="NAME", help="slug; created if missing")
    build.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="FILE",
        help="requirements.txt, pyproject.toml or a lock with hashes; “-”: standard input",
    )
    build.add_argument(
        "--team", default="", metavar="SLUG", help="team of a new environment; default: all teams"
    )
    build.add_argument("--python", default="", metavar="VERSION", help="for example 3.12; default: unchanged")
    build.add_argument(
        "--wait", action="store_true", help="wait until it is ready; exit code 1 if it fails, with the line"
    )
    build.add_argument(
        "--timeout", type=positive, default=3600, metavar="SECONDS", help="with --wait; default: 3600"
    )


def gpu(commands: Any, common: argparse.ArgumentParser) -> None:
    gpu = commands.add_parser("gpu", help="Check GPUs.", description="Check GPUs.")
    verbs = gpu.add_subparsers(metavar="COMMAND", required=True)
    summary = "Check the GPUs of this machine, or a GPU of a node."
    check = verbs.add_parser(
        "check",
        help=summary,
        description=summary,
        parents=[common],
        epilog=GPU_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.set_defaults(function="gpu_check")
    check.add_argument("--uuid", default="", metavar="UUID", help="GPU of this machine; default: all")
    check.add_argument("--device", default="", metavar="UUID", help="GPU of a node, through the portal")
    check.add_argument(
        "--node", default="", metavar="NAME", help="check all GPUs of this node at once, through the portal"
    )
    check.add_argument(
        "--with",
        dest="with_node",
        default="",
        metavar="NAME",
        help="check the link between --node and this node",
    )
    check.add_argument(
        "--level", choices=("quick", "standard", "extended"), default="quick", help="default: quick"
    )
    check.add_argument(
        "--timeout", type=positive, default=3600, metavar="SECONDS", help="wait for the portal; default: 3600"
    )


def node(commands: Any, common: argparse.ArgumentParser) -> None:
    summary = "Run this machine as a node of another machine's portal."
    top = commands.add_parser(
        "node",
        help=summary,
        description=summary,
        epilog=NODE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(metavar="COMMAND", required=True)

    def verb(name: str, summary: str) -> argparse.ArgumentParser:
        subparser = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        # Progress lines are rewritten in place, so output is not filtered; untrusted text is sanitized at
        # input.
        subparser.set_defaults(function=f"node_{name.replace('-', '_')}", raw=True)
        subparser.add_argument(
            "--home",
            default="",
            metavar="DIR",
            help="folder of the node; default: BERTH_HOME, or the standard folder",
        )
        return cast(argparse.ArgumentParser, subparser)

    join = verb("join", "Join this machine to a pool, with a token from the portal.")
    join.add_argument("url", metavar="URL", help="URL for machines, as in the command that the portal shows")
    join.add_argument("--token", required=True, help="works once; “-”: standard input")
    join.add_argument("--name", default="", help="name of the node; default: the host name")
    join.add_argument(
        "--address",
        default="",
        metavar="HOST",
        help="address for the portal; default: the address it connects from",
    )
    join.add_argument(
        "--gateway-port",
        type=port,
        default=8646,
        metavar="N",
        help="port for access to workspaces; default: 8646",
    )
    join.add_argument("--rack", default="", metavar="NAME", help="rack of the machine, for placement")
    join.add_argument("--block", default="", metavar="NAME", help="block of racks, as one network switch has")
    join.add_argument("--no-service", action="store_true", help="do not create a systemd unit")
    join.add_argument("--no-environment", action="store_true", help="do not install the notebook environment")
    verb("run", "Run the node's services in the foreground, as the systemd unit does.")
    verb("status", "Show whether this node is connected and healthy.")
    verb("rotate", "Rotate keys and certificate now. This happens automatically before they expire.")
    leave = verb("leave", "Leave the pool and delete the keys; home folders are kept.")
    leave.add_argument("--forget", action="store_true", help="only on this machine, if the portal is gone")
    group = leave.add_mutually_exclusive_group()
    group.add_argument(
        "--drain",
        action="store_const",
        const="drain",
        dest="workspaces",
        help="move its workspaces away first",
    )
    group.add_argument(
        "--stop", action="store_const", const="stop", dest="workspaces", help="stop its workspaces first"
    )
    leave.set_defaults(workspaces="")
    verb("environment", "Install the notebook environment.")
    tried = verb("try-suspend", "Test whether this machine can suspend GPU work to host memory.")
    tried.add_argument("--device", default="", metavar="UUID", help="idle GPU; default: the first one")
    tried.add_argument("--onto", default="", metavar="UUID", help="restore on this GPU of the same model")
    for name, summary in (
        ("suspend", "Suspend a workspace: release its GPUs and keep its variables."),
        ("resume", "Resume a suspended workspace on its GPUs."),
    ):
        verb(name, summary).add_argument(
            "workspace", metavar="ID", help="id of the workspace, as on its page"
        )


ALL = (
    requests,
    user,
    teams,
    service_account,
    secret,
    environments,
    files,
    homes,
    gpu,
    node,
)
"""Functions that add a command group, in the order of the help. Those of operators follow."""
