"""Parser of the `berth` command line: commands, options and their help."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from typing import Any

from portal.cli import config, parser_groups, parser_operations
from portal.cli.argument_types import add_workspace_argument, forward, hours, positive, wait

ENVIRONMENT = "software environment, as in `berth environments`; default: the template's"
FLAVORS_OF_PREVIEW = "several in order of preference: starts on the first one that is free"
FLAVORS = f"{FLAVORS_OF_PREVIEW}; default: the first in the catalog"
START_WITHIN = "with several flavors: wait up to MIN minutes for an earlier one even if a later one is free"
MOVE_HOME = "let a large home folder move to another machine if the workspace then starts sooner"
EPILOG = """\
examples:
  berth login https://berth.example.org    store address and token
  berth flavors                            list sizes
  berth up --flavor gpu-small --wait       start a workspace and print its URL
  berth up --flavor h100,a100              on an H100, else an A100, else wait
  berth ls                                 list your workspaces
  berth logs -f NAME                       follow its log
  berth stop NAME                          stop it; files are kept

environment:
  BERTH_URL, BERTH_TOKEN   address and token; override `berth login`
  NO_COLOR, TERM=dumb      progress in plain lines, as without a terminal

exit codes (`berth gpu check` has its own):
  0  done                      4  the portal does not answer, or has an untrusted certificate
  1  error                     5  workspace not found
  2  wrong usage               6  timeout
  3  no token, or expired      7  needs an approval
                             130  interrupted; 143 by SIGTERM
"""


@cache
def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. Takes 40 ms."""
    top = argparse.ArgumentParser(
        prog="berth",
        description="GPU workspaces from the command line.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Version, help="print the version and exit")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    # Every command accepts these options, so that they can follow its arguments.
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON, also for errors")
    common.add_argument("-q", "--quiet", action="store_true", help="print results and errors only")

    def command(name: str, function: str, summary: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name, help=summary, description=summary, parents=[common])
        subparser.set_defaults(function=function)
        return subparser

    login = command("login", "login", "Store the portal's address and a token.")
    login.add_argument("url", nargs="?", default="", help=f"default: BERTH_URL, else {config.DEFAULT_URL}")
    login.add_argument("--token", default="", help="default: prompt, or standard input")
    login.add_argument(
        "--ci", action="store_true", help="exchange the identity token of this GitHub or GitLab job"
    )
    login.add_argument(
        "--audience", default="", help="with --ci on GitHub: audience of the identity token; default: URL"
    )
    login.add_argument(
        "--service-account",
        default="",
        metavar="NAME",
        help="with --ci: service account, if trust rules of several accounts match",
    )

    up = command("up", "up", "Create a workspace and start it.")
    up.add_argument("--template", default="", metavar="SLUG", help="default: the first in the catalog")
    up.add_argument("--flavor", default="", metavar="SLUG[,…]", help=FLAVORS)
    up.add_argument("--start-within", type=int, default=0, metavar="MIN", help=START_WITHIN)
    up.add_argument("--team", default="", metavar="SLUG", help="default: your only team")
    up.add_argument("--environment", default="", metavar="SLUG", help=ENVIRONMENT)
    up.add_argument("--name", default="", help="default: a generated name")
    up.add_argument("--hours", type=hours, default=None, metavar="H", help="stop it after this time")
    up.add_argument(
        "--start-without-gpu",
        action="store_true",
        default=None,
        help="do not wait for GPUs: start without them, and attach them later",
    )
    up.add_argument("--move-home", action="store_true", default=None, help=MOVE_HOME)
    up.add_argument(
        "--checkpointed",
        action="store_true",
        default=None,
        help="the work saves checkpoints, so a preemption does not lose it",
    )
    up.add_argument(
        "--secret", action="append", default=[], metavar="NAME", help="secret to provide; repeatable"
    )
    up.add_argument("--git", default="", metavar="URL", help="repository to clone; default: the template's")
    up.add_argument("--git-ref", default="", metavar="NAME", help="branch, tag or commit")
    up.add_argument("--git-secret", default="", metavar="NAME", help="secret with the credential")
    up.add_argument("--no-git", action="store_true", help="clone no repository")
    up.add_argument(
        "--ask", default="", metavar="REASON", help="if an approval is needed, request it with this reason"
    )
    up.add_argument(
        "--ask-hours",
        type=hours,
        default=None,
        metavar="H",
        help="with --ask: hours until the approval expires; default: never",
    )
    up.add_argument(
        "--reuse",
        action="store_true",
        help="use your existing workspace with this --name; start it if needed",
    )
    up.add_argument(
        "--idempotency-key",
        default="",
        metavar="KEY",
        help="within 24 hours, the same key does not create a second workspace",
    )
    up.add_argument(
        "--clean-up",
        action="store_true",
        help="delete the new workspace if it fails, times out or the command is interrupted",
    )
    up.add_argument(
        "--keep",
        action="store_true",
        help="keep the workspace when the CI job ends, as --reuse does",
    )
    wait(up)

    command("whoami", "whoami", "Show the user and scopes of the token.")
    command("logout", "logout", "Delete the stored token.")

    list_parser = command("ls", "ls", "List workspaces.")
    list_parser.add_argument(
        "--all", action="store_true", help="include workspaces of other users that you can see"
    )
    list_parser.add_argument("--team", default="", metavar="SLUG", help="of this team only")
    list_parser.add_argument("--state", default="", metavar="STATE", help="in this state only")

    add_workspace_argument(command("show", "show", "Show a workspace: state, URL, devices, end."))

    command("templates", "templates", "List templates.")
    command("flavors", "flavors", "List flavors: the sizes of workspaces.")
    preview = command("preview", "preview", "Show whether a workspace would start, without creating it.")
    preview.add_argument("--template", required=True, metavar="SLUG")
    preview.add_argument("--flavor", required=True, metavar="SLUG[,…]", help=FLAVORS_OF_PREVIEW)
    preview.add_argument("--start-within", type=int, default=0, metavar="MIN", help=START_WITHIN)
    preview.add_argument("--team", default="", metavar="SLUG", help="default: your only team")
    preview.add_argument("--environment", default="", metavar="SLUG", help=ENVIRONMENT)

    preview.add_argument(
        "--start-without-gpu", action="store_true", default=None, help="do not wait for GPUs"
    )
    preview.add_argument("--move-home", action="store_true", default=None, help=MOVE_HOME)

    open_ = command("open", "open_", "Print the URL of a workspace.")
    add_workspace_argument(open_)
    open_.add_argument("--browser", action="store_true", help="open it in the browser")

    start = command("start", "start", "Start a stopped or failed workspace.")
    add_workspace_argument(start)
    wait(start)
    run = command("exec", "execute", "Run a command in a workspace and return its exit code.")
    run.description = (
        "Run a command in a workspace and return its exit code. The command runs through the workspace's "
        "Jupyter server, so the template needs one. Standard output and error are combined; there is no "
        "standard input. Options come before NAME. The command ends when `berth exec` does."
    )
    run.usage = "berth exec [--team SLUG] NAME -- COMMAND …"
    add_workspace_argument(run)
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="command and arguments")
    lead = command("port-forward", "port_forward", "Forward local ports to a workspace.")
    lead.description = (
        "Forward ports of 127.0.0.1 to ports in a workspace, for example TensorBoard or a debugger, until "
        "you interrupt the command. The template needs a Jupyter server, which forwards the connections."
    )
    add_workspace_argument(lead)
    ports = "local port (default: the same; 0: any free port) and port in the workspace"
    lead.add_argument("forwards", nargs="+", type=forward, metavar="[LOCAL:]PORT", help=ports)
    stop = command("stop", "stop", "Stop a workspace; files are kept.")
    add_workspace_argument(stop)
    wait(stop, "wait until it has stopped")

    release = command(
        "release-gpu",
        "release_gpu",
        "Release a workspace's GPUs. The app restarts: variables are lost, files are kept.",
    )
    add_workspace_argument(release)
    attach = command(
        "attach-gpu", "attach_gpu", "Attach released GPUs again. The app restarts once the GPUs are free."
    )
    add_workspace_argument(attach)

    resize = command(
        "resize",
        "resize",
        "Change a workspace's flavor. The app restarts: variables are lost, files are kept.",
    )
    add_workspace_argument(resize)
    resize.add_argument("--flavor", required=True, metavar="SLUG", help="new flavor")

    change = command("set", "change", "Change name, expected duration or priority of a workspace.")
    add_workspace_argument(change)
    change.add_argument("--name", default=None, metavar="NAME", help="new name; not while it runs")
    change.add_argument(
        "--hours", type=hours, default=None, metavar="H", help="expected hours from its start"
    )
    change.add_argument(
        "--priority",
        type=int,
        default=None,
        metavar="N",
        help="-100 to 100; above 0 for team owners only",
    )

    extend = command("extend", "extend", "Extend the lifetime of a workspace.")
    add_workspace_argument(extend)
    extend.add_argument("--hours", type=hours, default=2.0, metavar="H", help="default: 2")

    rm = command("rm", "rm", "Delete a workspace; the home folder is kept.")
    add_workspace_argument(rm)
    rm.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    rm.add_argument("--ignore-missing", action="store_true", help="succeed if it does not exist")
    wait(rm, "wait until it is deleted")

    quota = command("quota", "quota", "Show quota, usage and borrowing of your teams.")
    quota.add_argument("team", nargs="?", default="", metavar="TEAM", help="default: all your teams")
    budget = command("budget", "budget", "Show this month's spending and budgets of your teams.")
    budget.add_argument("team", nargs="?", default="", metavar="TEAM", help="default: all visible teams")

    use = command("efficiency", "efficiency", "Show the GPU utilisation of your workspaces, with hints.")
    use.add_argument(
        "workspace", nargs="?", default="", metavar="WORKSPACE", help="default: all running ones"
    )
    use.add_argument(
        "--team", default="", metavar="SLUG", help="team of the workspace, or of all workspaces to show"
    )

    usage = command("usage", "usage", "Show a workspace's measured use of CPU, memory and GPUs.")
    add_workspace_argument(usage)
    usage.add_argument(
        "--span", choices=("hour", "day", "week", "all"), default="day", help="period up to now; default: day"
    )

    logs = command("logs", "logs", "Print the log of a workspace's program.")
    add_workspace_argument(logs)
    logs.add_argument("-n", "--tail", type=positive, default=200, metavar="LINES", help="default: 200")
    logs.add_argument("-f", "--follow", action="store_true", help="follow new lines")
    raw = "keep escape sequences, which can control your terminal"
    logs.add_argument("--raw", action="store_true", help=raw)
    queue = command("queue", "queue", "List waiting workspaces in scheduling order.")
    queue.add_argument("--team", default="", metavar="SLUG", help="of this team only")
    queue.add_argument("--mine", action="store_true", help="your own workspaces only")
    events = command("events", "events", "Print events of a workspace, or of everything visible to you.")
    events.add_argument("workspace", nargs="?", default="", metavar="WORKSPACE", help="default: everything")
    team = "events of this team only; with a workspace: its team"
    events.add_argument("--team", default="", metavar="SLUG", help=team)
    kind = "without a workspace: this type only, for example workspace.failed; repeatable"
    events.add_argument("--type", action="append", default=[], metavar="TYPE", help=kind)
    events.add_argument("-n", "--tail", type=positive, default=50, metavar="EVENTS", help="default: 50")
    events.add_argument("-f", "--follow", action="store_true", help="follow new events")
    completion = command("completion", "completion", "Print the completion script for a shell.")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell")
    own = command(
        "packages",
        "packages",
        "List the packages that you installed in a workspace in addition to its environment.",
    )
    add_workspace_argument(own)
    act = own.add_mutually_exclusive_group()
    act.add_argument("--reset", action="store_true", help="delete them at the next start")
    act.add_argument("--keep", action="store_true", help="cancel a reset")
    act.add_argument(
        "--save", default="", metavar="NAME", help="create an environment of the team from these packages"
    )
    own.add_argument("--everybody", action="store_true", help="with --save: for all teams; operators only")
    command(
        "export",
        "export",
        "Print the site file: catalog, pools, teams, limits, rules. For administrators and auditors.",
    )
    for name, label in (
        ("plan", "Show the changes that a site file would make; exit code 2 if there are any."),
        ("apply", "Apply a site file: all changes or none."),
    ):
        of_site = command(name, f"{name}_site", label)
        of_site.add_argument("-f", "--file", required=True, metavar="FILE", help="“-”: standard input")
        of_site.add_argument(
            "--prune", action="store_true", help="also delete entries missing from a section of the file"
        )
    for group in (*parser_groups.ALL, *parser_operations.ALL):
        group(commands, common)
    return top


class _Version(argparse.Action):
    """`--version`, which determines the version only when requested."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        # Imported here: the metadata of packages takes longer to read than the rest of the command.
        from portal.cli.version import version

        print(f"berth {version()}")
        parser.exit()
