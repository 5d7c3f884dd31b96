"""The arguments of `berth`: commands, options and what their help says."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from portal.cli import config, parser_groups
from portal.cli.argument_types import forward, hours, one_workspace, positive, wait

ENVIRONMENT = "the software, of `berth environments`; default: the template's"
EPILOG = """\
examples:
  berth login https://berth.example.org    store the address and a token
  berth flavors                            what there is
  berth up --flavor gpu-small --wait       start a workspace, and print its address when it is ready
  berth ls                                 your workspaces
  berth logs -f NAME                       what its program writes
  berth stop NAME                          stop it; its files stay

environment:
  BERTH_URL, BERTH_TOKEN   address and token; they win over what `berth login` stored
  NO_COLOR, TERM=dumb      progress in plain lines, as where no terminal is; colours are never used

exit codes (those of `berth gpu check` are in its own help):
  0  done                      4  the portal does not answer, or its certificate is not trusted
  1  the portal refused        5  there is no such workspace
  2  wrong usage               6  not ready in time
  3  no token, or a bad one    7  it needs an approval
                             130  interrupted, or 143 by SIGTERM
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="berth",
        description="GPU workspaces from the command line.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action=_Version, help="print the version and exit")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    # Every command has it, so that it can stand where one thinks of it: at the end.
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="JSON on standard output, errors too")
    common.add_argument(
        "-q", "--quiet", action="store_true", help="no progress and no notes; results and errors only"
    )

    def command(name: str, function: str, words: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=words, description=words, parents=[common])
        made.set_defaults(function=function)
        return made

    login = command("login", "login", "Store the portal's address and a token that works there.")
    login.add_argument("url", nargs="?", default="", help=f"default: BERTH_URL, else {config.DEFAULT_URL}")
    login.add_argument("--token", default="", help="asked for when left out, or read from standard input")
    login.add_argument("--ci", action="store_true", help="exchange the token of this job of GitHub or GitLab")
    login.add_argument(
        "--audience", default="", help="with --ci on GitHub: whom to ask it for (default: URL)"
    )
    login.add_argument(
        "--service-account",
        default="",
        metavar="NAME",
        help="with --ci, where rules of several let the job in",
    )

    up = command("up", "up", "Create a workspace and start it.")
    up.add_argument("--template", default="", metavar="SLUG", help="default: the first one of the catalog")
    up.add_argument("--flavor", default="", metavar="SLUG", help="default: the first one of the catalog")
    up.add_argument("--team", default="", metavar="SLUG", help="default: your only team")
    up.add_argument("--environment", default="", metavar="SLUG", help=ENVIRONMENT)
    up.add_argument("--name", default="", help="default: one is chosen")
    up.add_argument(
        "--hours", type=hours, default=None, metavar="H", help="stop it after this long; `extend` adds to it"
    )
    up.add_argument(
        "--start-without-gpu",
        action="store_true",
        default=None,
        help="do not wait for GPUs: start without where none is free, and attach them later",
    )
    up.add_argument(
        "--checkpointed",
        action="store_true",
        default=None,
        help="its work goes on from a checkpoint if it has to make room",
    )
    up.add_argument(
        "--secret", action="append", default=[], metavar="NAME", help="one that it gets; may be repeated"
    )
    up.add_argument("--git", default="", metavar="URL", help="a repository to clone; default: its template's")
    up.add_argument("--git-ref", default="", metavar="NAME", help="a branch, tag or commit of it")
    up.add_argument("--git-secret", default="", metavar="NAME", help="the secret that opens it")
    up.add_argument("--no-git", action="store_true", help="clone nothing, whatever its template says")
    up.add_argument("--reuse", action="store_true", help="take your own of this --name where it is there")
    up.add_argument(
        "--idempotency-key", default="", metavar="KEY", help="the same key within a day makes no second one"
    )
    up.add_argument(
        "--clean-up",
        action="store_true",
        help="delete what it made where it does not become ready, also at Ctrl-C and SIGTERM",
    )
    wait(up)

    command("whoami", "whoami", "Say whose token this is, and what it may do.")
    command("logout", "logout", "Forget the stored token.")

    listed = command("ls", "ls", "List workspaces.")
    listed.add_argument("--all", action="store_true", help="those of others too, as far as you may see them")
    listed.add_argument("--team", default="", metavar="SLUG")
    listed.add_argument("--state", default="", metavar="STATE")

    one_workspace(command("show", "show", "Show one workspace: state, address, devices, end."))

    command("templates", "templates", "List what can be run.")
    command("flavors", "flavors", "List the sizes that there are.")
    preview = command("preview", "preview", "Say what would become of a request, and make none.")
    preview.add_argument("--template", required=True, metavar="SLUG")
    preview.add_argument("--flavor", required=True, metavar="SLUG")
    preview.add_argument("--team", default="", metavar="SLUG", help="default: your only team")
    preview.add_argument("--environment", default="", metavar="SLUG", help=ENVIRONMENT)

    preview.add_argument(
        "--start-without-gpu", action="store_true", default=None, help="as of `up`: not to wait for GPUs"
    )

    open_ = command("open", "open_", "Print the address of a workspace.")
    one_workspace(open_)
    open_.add_argument("--browser", action="store_true", help="open it in the browser, through the portal")

    start = command("start", "start", "Start a stopped workspace, or a failed one again.")
    one_workspace(start)
    wait(start)
    run = command("exec", "execute", "Run a command inside a workspace, and end with its exit code.")
    run.description = (
        "Run a command inside a workspace, and end with its exit code. By its Jupyter: the template has to "
        "have one. Standard output and error come as one; there is no standard input. "
        "Options stand before NAME. It ends when this command does."
    )
    run.usage = "berth exec [--team SLUG] NAME -- COMMAND …"
    one_workspace(run)
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="with its arguments")
    lead = command("port-forward", "port_forward", "Lead ports of this machine to ports inside a workspace.")
    lead.description = (
        "Lead ports of this machine's loopback address to ports inside a workspace, as of TensorBoard or a "
        "debugger, until it ends or you interrupt. By its Jupyter: the template has to have one."
    )
    one_workspace(lead)
    ports = "where it is to be had here, 0 for any that is free (default: the same port); and inside"
    lead.add_argument("forwards", nargs="+", type=forward, metavar="[LOCAL:]PORT", help=ports)
    stop = command("stop", "stop", "Stop a workspace; its files stay.")
    one_workspace(stop)
    wait(stop, "until nothing of it runs")

    release = command(
        "release-gpu",
        "release_gpu",
        "Give a workspace's GPUs back: its app restarts, kernels lose their variables, files stay.",
    )
    one_workspace(release)
    attach = command(
        "attach-gpu", "attach_gpu", "Take them again: its app restarts as soon as its GPUs are free."
    )
    one_workspace(attach)

    resize = command(
        "resize",
        "resize",
        "Give a workspace another flavor: its app restarts, kernels lose their variables, files stay.",
    )
    one_workspace(resize)
    resize.add_argument("--flavor", required=True, metavar="SLUG")

    change = command("set", "change", "Rename a workspace, or say anew how long you need it or its priority.")
    one_workspace(change)
    change.add_argument("--name", default=None, metavar="NAME", help="not while it runs")
    change.add_argument(
        "--hours", type=hours, default=None, metavar="H", help="how long it is needed, from its start on"
    )
    change.add_argument(
        "--priority",
        type=int,
        default=None,
        metavar="N",
        help="from -100 to 100; above 0 for owners of its team",
    )

    extend = command("extend", "extend", "Let a workspace run for longer.")
    one_workspace(extend)
    extend.add_argument("--hours", type=hours, default=2.0, metavar="H", help="default: 2")

    rm = command("rm", "rm", "Delete a workspace; your home folder stays.")
    one_workspace(rm)
    rm.add_argument("-y", "--yes", action="store_true", help="do not ask")
    rm.add_argument("--ignore-missing", action="store_true", help="it is no error that there is none")
    wait(rm, "until nothing is left of it")

    quota = command("quota", "quota", "Show what your teams use, may use and borrow.")
    quota.add_argument("team", nargs="?", default="", metavar="TEAM", help="default: all your teams")
    budget = command(
        "budget", "budget", "Show what your teams have spent of their budgets in money this month."
    )
    budget.add_argument("team", nargs="?", default="", metavar="TEAM", help="default: all that you see")

    use = command(
        "efficiency", "efficiency", "Show how much of their GPU time your workspaces use, with a hint each."
    )
    use.add_argument("workspace", nargs="?", default="", metavar="WORKSPACE", help="default: all that run")
    use.add_argument("--team", default="", metavar="SLUG", help="where you have the name in two; only these")

    logs = command("logs", "logs", "Print the last lines that a workspace's program wrote.")
    one_workspace(logs)
    logs.add_argument("-n", "--tail", type=positive, default=200, metavar="LINES", help="default: 200")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what it writes")
    raw = "print escape sequences as they are; a terminal obeys them, whoever wrote them"
    logs.add_argument("--raw", action="store_true", help=raw)
    queue = command("queue", "queue", "List what waits, in the order in which it is looked at.")
    queue.add_argument("--team", default="", metavar="SLUG", help="only this team's")
    queue.add_argument("--mine", action="store_true", help="only your own")
    events = command("events", "events", "Print what has happened to a workspace, or to all you may see.")
    events.add_argument("workspace", nargs="?", default="", metavar="WORKSPACE", help="default: everything")
    team = "only this team's; with a workspace where you have the name in two"
    events.add_argument("--team", default="", metavar="SLUG", help=team)
    kind = "without a workspace: only this type, as workspace.failed; may be repeated"
    events.add_argument("--type", action="append", default=[], metavar="TYPE", help=kind)
    events.add_argument("-n", "--tail", type=positive, default=50, metavar="EVENTS", help="default: 50")
    events.add_argument("-f", "--follow", action="store_true", help="go on as things happen")
    completion = command("completion", "completion", "Print what completes commands in a shell.")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that it is for")
    own = command("packages", "packages", "Show what you have installed on top of a workspace's environment.")
    one_workspace(own)
    act = own.add_mutually_exclusive_group()
    act.add_argument("--reset", action="store_true", help="have the next start remove them")
    act.add_argument("--keep", action="store_true", help="take a reset back")
    act.add_argument("--save", default="", metavar="NAME", help="make an environment of them for the team")
    own.add_argument("--everybody", action="store_true", help="with --save: for everybody; for operators")
    command(
        "export",
        "export",
        "Print the site as a file: catalog, pools, teams, limits, rules. For administrators.",
    )
    for name, words in (
        ("plan", "Say what applying a site file would change; exit code 2 where it is anything."),
        ("apply", "Make the site as a file says, all of it or nothing."),
    ):
        of_site = command(name, f"{name}_site", words)
        of_site.add_argument("-f", "--file", required=True, metavar="FILE", help="“-” is standard input")
        of_site.add_argument(
            "--prune", action="store_true", help="delete what a section of the file does not name, too"
        )
    for group in parser_groups.ALL:
        group(commands, common)
    return top


class _Version(argparse.Action):
    """`--version`, looked up only where it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from portal.cli.version import version

        print(f"berth {version()}")
        parser.exit()
