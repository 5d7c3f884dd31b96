"""Implementation of the commands."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from portal.cli import config
from portal.cli.client import BerthClient
from portal.cli.errors import (
    EXIT_REFUSED,
    NEEDS_APPROVAL,
    CliError,
    Missing,
    NotSignedIn,
    RequestRejected,
    Unreachable,
    UsageError,
)
from portal.cli.signals import ignore_signals
from portal.cli.terminal import Progress
from portal.cli.waiting import failure_text, line_of, wait_ready, wait_stopped, wait_until_deleted

MINIMAL = "minimal"
"""Environment of a workspace that uses the software installed on its node."""
MAX_CLEAN_UP_TRIES = 3
CLEAN_UP_RETRY_S = 1.0
Workspace = dict[str, Any]


def login(arguments: argparse.Namespace) -> int:
    """Verify the token, then save it."""
    url = config.check_url(arguments.url or os.environ.get("BERTH_URL") or config.DEFAULT_URL)
    key = ""
    if arguments.ci:
        # Imported here: only pipelines need it.
        from portal.cli import ci

        key = config.exchange_key(os.environ, url)
        job = ci.token(
            url, os.environ, audience=arguments.audience, service_account=arguments.service_account, key=key
        )
        token, key = job.token, job.key
    else:
        token = arguments.token or os.environ.get("BERTH_TOKEN") or _ask_token(url)
    if not token:
        raise NotSignedIn("No token given.", f"Create one at {url}/account/tokens/ and paste it.")
    if not token.isascii() or any(character.isspace() for character in token):
        raise NotSignedIn("This is not a token.", "Copy the whole token, which begins with berth_.")
    with BerthClient(url, token) as client:
        me = client.users.me()
    path = config.save(config.Config(url=url, token=token, exchange_key=key), os.environ)
    if url.startswith("http://") and not _is_local(url):
        print("Warning: the address is not encrypted. Others can read the token.", file=sys.stderr)
    if arguments.json:
        return print_json({"url": url, "username": me["username"], "config": str(path)})
    print(f"Signed in at {url} as {me['username']}.")
    return 0


def _ask_token(url: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    print(f"Create a token at {url} (your account, Tokens) and paste it here.", file=sys.stderr)
    return getpass.getpass("Token: ").strip()


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "127.0.0.1", "::1") or host.endswith(".localhost")


def up(client: BerthClient, arguments: argparse.Namespace) -> int:
    if arguments.reuse and not arguments.name:
        raise UsageError("--reuse needs --name.", "Add the workspace's name: --name NAME.")
    if arguments.ask_hours and not arguments.ask:
        raise UsageError("--ask-hours needs --ask.", 'Add the reason: --ask "why".')
    if arguments.reuse and (existing := _existing_workspace(client, arguments)):
        if existing["state"] == "stopping":
            existing = wait_stopped(client, existing, timeout_s=arguments.timeout, show=_show_nothing)
        if existing["state"] in ("stopped", "failed"):
            try:
                existing = client.workspaces.start(existing["id"])
            except RequestRejected as error:
                _request_quota(client, error, arguments)
                existing = client.workspaces.start(existing["id"])
        return _finish_start(client, existing, arguments, goes_on=True, requested=bool(arguments.ask))
    template = arguments.template or _first_slug(
        (row["slug"] for row in client.templates.list() if row["available"]), "template"
    )
    flavor = arguments.flavor or _first_slug((row["slug"] for row in client.flavors.list()), "flavor")
    request: dict[str, Any] = {
        "template": template,
        **flavors_of(flavor),
        "start_within_min": arguments.start_within,
        "team": arguments.team,
        "environment": arguments.environment,
        "name": arguments.name,
        "lifetime_hours": arguments.hours,
        "checkpointed": arguments.checkpointed,
        "start_without_gpu": arguments.start_without_gpu,
        "move_home": arguments.move_home,
        "secrets": arguments.secret,
        "git": _git(arguments),
        # With --reuse, later jobs use the workspace, too.
        "keep_after_job": arguments.keep or arguments.reuse,
        "idempotency_key": arguments.idempotency_key or str(uuid.uuid4()),
    }
    workspace: Workspace | None = None
    quota_request: dict[str, Any] | None = None
    code = EXIT_REFUSED
    try:
        try:
            workspace = client.workspaces.create(**request)
        except RequestRejected as error:
            quota_request = _request_quota(client, error, arguments, key=request["idempotency_key"])
            workspace = client.workspaces.get(quota_request["workspace"])
        code = _finish_start(
            client,
            workspace,
            arguments,
            goes_on=not arguments.clean_up,
            requested=bool(arguments.ask),
            quota_request=quota_request,
        )
        return code
    except (KeyboardInterrupt, Unreachable):
        if workspace is None and arguments.clean_up:
            # The workspace may exist although the response was lost: the same key returns it.
            with ignore_signals(), contextlib.suppress(CliError):
                workspace = client.workspaces.create(**request, retries=0)
        raise
    finally:
        if arguments.clean_up and workspace is not None and code != 0:
            with ignore_signals():
                if quota_request is not None:
                    # Cancel the request, so that no approver has to decide it.
                    with contextlib.suppress(CliError):
                        client.quota_requests.cancel(quota_request["id"])
                _clean_up(client, workspace)


def _request_quota(
    client: BerthClient, error: RequestRejected, arguments: argparse.Namespace, *, key: str = ""
) -> dict[str, Any]:
    """Request the quota that `error` lacks, together with the workspace if it is new.

    Raises `error` if there is nothing to request or `--ask` is missing, and `RequestRejected` if the user has
    to start an existing workspace again after the approval.
    """
    if error.ask is None:
        raise error
    if not arguments.ask:
        error.next_action = 'Add --ask "why" to request it. The workspace starts once approved.'
        raise error
    body = {**error.ask, "note": arguments.ask}
    if arguments.ask_hours and body["kind"] != "ledger":
        body["until"] = end_after_hours(arguments.ask_hours)
    quota_request = client.quota_requests.create(**body, idempotency_key=key)
    if "start" not in error.ask and quota_request["state"] != "approved":
        raise RequestRejected(
            f"{error.message} Approval requested ({quota_request['id'][:8]}).",
            "Repeat the command once approved. `berth requests` lists open requests.",
            status=error.status,
            code=error.code,
        )
    return quota_request


def flavors_of(text: str) -> dict[str, Any]:
    """Return the request fields for `--flavor`, which may list several in order of preference."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    return {"flavors": names} if len(names) > 1 else {"flavor": "".join(names)}


def _existing_workspace(client: BerthClient, arguments: argparse.Namespace) -> Workspace | None:
    """Return the user's workspace with this name. Raises `UsageError` if it differs from the request."""
    rows = client.workspaces.list(
        owner=client.users.me()["username"], name=arguments.name, team=arguments.team
    )
    matches = [row for row in rows if row["state"] not in ("terminating", "terminated")]
    if len(matches) > 1:
        raise UsageError(f"You have “{arguments.name}” in several teams.", "Add --team.")
    for field in ("template", "flavor", "environment"):
        if (
            matches
            and (requested := getattr(arguments, field))
            and (actual := matches[0][field] or MINIMAL) not in requested.split(",")
        ):
            raise UsageError(
                f"{arguments.name} already exists with {field} {actual}, not {requested}.",
                "Delete it with `berth rm`, or choose another --name.",
            )
    return matches[0] if matches else None


def _clean_up(client: BerthClient, workspace: Workspace) -> None:
    """Delete a workspace that did not become ready; report if that fails."""
    error: CliError | None = None
    for _ in range(MAX_CLEAN_UP_TRIES):
        try:
            client.workspaces.delete(workspace["id"])
        except Missing:
            return
        except Unreachable as exception:
            error = exception
            time.sleep(CLEAN_UP_RETRY_S)
        except CliError as exception:
            error = exception
            break
        else:
            print(f"{workspace['name']} deleted.", file=sys.stderr, flush=True)
            return
    message = f"{workspace['name']} could not be deleted: {error.message if error else ''}"
    print(f"{message} Run `berth rm {workspace['id']} --yes`.", file=sys.stderr, flush=True)


def _git(arguments: argparse.Namespace) -> dict[str, str] | None:
    """Return the repository to clone; None leaves it to the template."""
    if arguments.no_git:
        return {"url": ""}
    if not arguments.git:
        if arguments.git_ref or arguments.git_secret:
            raise UsageError("--git-ref and --git-secret need a repository.", "Add --git URL.")
        return None
    return {"url": arguments.git, "ref": arguments.git_ref, "secret": arguments.git_secret}


def _first_slug(slugs: Iterator[str], kind: str) -> str:
    slug = next(slugs, "")
    if not slug:
        raise CliError(f"The catalog offers no {kind}.", "Contact an operator of this portal.")
    return slug


def start(client: BerthClient, arguments: argparse.Namespace) -> int:
    workspace = client.workspaces.start(find(client, arguments)["id"])
    return _finish_start(client, workspace, arguments)


def _finish_start(
    client: BerthClient,
    workspace: Workspace,
    arguments: argparse.Namespace,
    *,
    goes_on: bool = True,
    requested: bool = False,
    quota_request: dict[str, Any] | None = None,
) -> int:
    with _progress(arguments) as show:
        show(line_of(workspace))
        if arguments.wait:
            workspace = wait_ready(
                client,
                workspace,
                timeout_s=arguments.timeout,
                show=show,
                goes_on=goes_on,
                requested=requested,
            )
    failed = arguments.wait and workspace["state"] != "running"
    if failed and quota_request is not None:
        _require_not_denied(client.quota_requests.get(quota_request["id"]))
    if arguments.json:
        print_json(workspace)
    elif failed:
        raise CliError(failure_text(workspace), f"`berth logs {workspace['id']}` shows its log.")
    else:
        print(workspace["url"])
    return EXIT_REFUSED if failed else 0


def _require_not_denied(quota_request: dict[str, Any]) -> None:
    if quota_request["state"] == "denied":
        raise RequestRejected(
            f"{quota_request['decided_by']} denied the request: {quota_request['decision_note']}",
            "The workspace was deleted. Choose a smaller size.",
            status=409,
            code=NEEDS_APPROVAL,
        )


def end_after_hours(hours: float) -> str:
    """Return the time `hours` from now, as the end of a request."""
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    filters = {"team": arguments.team, "state": arguments.state}
    if not arguments.all:
        filters["owner"] = client.users.me()["username"]
    rows = list(client.workspaces.list(**filters))
    if arguments.json:
        return print_json(rows)
    if not rows:
        print("No workspaces. `berth up` starts one.", file=sys.stderr)
        return 0
    table: list[tuple[str, ...]] = [("NAME", "STATE", "TEMPLATE", "FLAVOR", "TEAM", "OWNER", "ID")]
    for row in rows:
        state = f"waits at {row['pool']}" if row.get("engine_wait") else row["state"]
        if row["simulated"]:
            state += " (simulated)"
        table.append(
            (row["name"], state, row["template"], row["flavor"], row["team"], row["owner"], row["id"])
        )
    return print_table(table)


def print_table(table: list[tuple[str, ...]], *, numbers_from: int = 1000) -> int:
    """Print columns with the required width; those from `numbers_from` are right-aligned."""
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        cells = [
            cell.rjust(width) if column >= numbers_from else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    return 0


def quota(client: BerthClient, arguments: argparse.Namespace) -> int:
    teams = [arguments.team] if arguments.team else [row["slug"] for row in client.users.me()["teams"]]
    usages = [client.quotas.usage(team) for team in teams]
    if arguments.json:
        return print_json(usages[0] if arguments.team else usages)
    if not teams:
        print("You have no team. Ask a team owner to add you.", file=sys.stderr)
        return 0
    table: list[tuple[str, ...]] = [
        ("TEAM", "RESOURCE", "USED", "QUOTA", "LIMIT", "BORROWED", "WAITING", "YOU", "YOUR CAP")
    ]
    for usage in usages:
        for row in usage["resources"]:
            table.append((usage["team"], row["label"], *(_amount(row, name) for name in AMOUNTS)))
        if not usage["resources"]:
            print(f"{usage['team']} has no quota: its usage is not limited.", file=sys.stderr)
    return print_table(table, numbers_from=2) if len(table) > 1 else 0


def budget(client: BerthClient, arguments: argparse.Namespace) -> int:
    budgets = [row for row in client.budgets.list() if arguments.team in ("", row["team"])]
    if arguments.json:
        return print_json(budgets)
    if not budgets:
        print("No budgets set.", file=sys.stderr)
        return 0
    table: list[tuple[str, ...]] = [("TEAM", "MONTH", "WHEN SPENT", "SPENT", "BUDGET", "PERCENT")]
    for row in budgets:
        money = (f"{row[name] / 100:.2f} {row['currency']}" for name in ("spent_cents", "amount_cents"))
        effect = "starts are blocked" if row["blocks"] else "owners notified"
        table.append((row["team"], row["month"][:7], effect, *money, str(row["percent"])))
    return print_table(table, numbers_from=3)


AMOUNTS = ("used", "quota", "limit", "borrowed", "queued", "mine", "cap")


def _amount(row: dict[str, Any], name: str) -> str:
    """Format an amount in its unit: GPUs, cores, GiB. A dash means unlimited."""
    if row[name] is None:
        return "-"
    number = f"{row[name] / row['factor']:.3f}".rstrip("0").rstrip(".")
    return f"{number} {row['unit']}".strip()


def open_(client: BerthClient, arguments: argparse.Namespace) -> int:
    workspace = find(client, arguments)
    if arguments.json:
        print_json({"id": workspace["id"], "state": workspace["state"], "url": workspace["url"]})
    else:
        if workspace["state"] != "running":
            print(f"Note: {line_of(workspace)}", file=sys.stderr)
        print(workspace["url"])
    if arguments.browser:
        # Imported here: it takes longer to import than the rest of the command.
        import webbrowser

        # Open the portal, where the browser is signed in and gets the ticket.
        if not webbrowser.open(f"{workspace['portal_url']}open/"):
            raise CliError("No browser found.", f"Open {workspace['portal_url']} yourself.")
    return 0


def stop(client: BerthClient, arguments: argparse.Namespace) -> int:
    workspace = client.workspaces.stop(find(client, arguments)["id"])
    if arguments.wait:
        with _progress(arguments) as show:
            workspace = wait_stopped(client, workspace, timeout_s=arguments.timeout, show=show)
    return print_json(workspace) if arguments.json else print_line(line_of(workspace))


def release_gpu(client: BerthClient, arguments: argparse.Namespace) -> int:
    workspace = client.workspaces.release_gpu(find(client, arguments)["id"])
    return print_json(workspace) if arguments.json else print_line(line_of(workspace))


def attach_gpu(client: BerthClient, arguments: argparse.Namespace) -> int:
    workspace = client.workspaces.attach_gpu(find(client, arguments)["id"])
    return print_json(workspace) if arguments.json else print_line(line_of(workspace))


def resize(client: BerthClient, arguments: argparse.Namespace) -> int:
    workspace = client.workspaces.resize(find(client, arguments)["id"], flavor=arguments.flavor)
    return print_json(workspace) if arguments.json else print_line(line_of(workspace))


def change(client: BerthClient, arguments: argparse.Namespace) -> int:
    options = {
        "name": arguments.name,
        "expected_hours": arguments.hours,
        "priority": arguments.priority,
    }
    changes = {field: value for field, value in options.items() if value is not None}
    if not changes:
        raise UsageError("Nothing to change.", "Add --name, --hours or --priority.")
    workspace = client.workspaces.update(find(client, arguments)["id"], **changes)
    return print_json(workspace) if arguments.json else print_line(line_of(workspace))


def extend(client: BerthClient, arguments: argparse.Namespace) -> int:
    workspace_id = find(client, arguments)["id"]
    workspace = client.workspaces.extend(workspace_id, hours=arguments.hours)
    if arguments.json:
        return print_json(workspace)
    return print_line(f"{workspace['name']} runs until {workspace['ends_at']}.")


def rm(client: BerthClient, arguments: argparse.Namespace) -> int:
    try:
        workspace = find(client, arguments)
    except Missing:
        if not arguments.ignore_missing:
            raise
        return print_json({"id": None, "deleted": False}) if arguments.json else 0
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UsageError("No terminal to ask for confirmation.", "Add --yes to confirm.")
        question = f"Delete {workspace['name']} of {workspace['owner']}? Its home folder is kept."
        print(question, end=" [y/N] ", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CliError("Nothing deleted.")
    client.workspaces.delete(workspace["id"])
    if arguments.wait:
        with _progress(arguments) as show:
            wait_until_deleted(client, workspace, timeout_s=arguments.timeout, show=show)
    if arguments.json:
        return print_json({"id": workspace["id"], "deleted": True})
    return print_line(f"{workspace['name']} {'deleted' if arguments.wait else 'is being deleted'}.")


def packages(client: BerthClient, arguments: argparse.Namespace) -> int:
    """List the user's own packages, remove or keep them at the next start, or save an environment."""
    workspace = find(client, arguments)
    if arguments.everybody and not arguments.save:
        raise UsageError("--everybody needs --save.", "Add --save NAME.")
    if arguments.save:
        environment = client.packages.save(
            workspace["id"], name=arguments.save, everybody=arguments.everybody
        )
        message = f"Environment {environment['slug']} created. Build queued."
        return print_json(environment) if arguments.json else print_line(message)
    if arguments.reset or arguments.keep:
        act = client.packages.cancel_reset if arguments.keep else client.packages.reset
        answer = act(workspace["id"])
        message = f"{workspace['name']}: " + (
            "your packages are kept." if arguments.keep else "the next start deletes your packages."
        )
        return print_json(answer) if arguments.json else print_line(message)
    document = client.packages.get(workspace["id"])
    if arguments.json:
        return print_json(document)
    if not document["packages"]:
        print("You have no extra packages in this workspace.", file=sys.stderr)
        return 0
    rows = [(row["name"], row["version"], row["instead_of"] or "-") for row in document["packages"]]
    return print_table([("PACKAGE", "VERSION", "REPLACES"), *rows])


def find(client: BerthClient, arguments: argparse.Namespace) -> Workspace:
    """Return the workspace with this id, or the user's own with this name. Raises `Missing`, `UsageError`."""
    reference = arguments.workspace
    try:
        identity = uuid.UUID(reference)
    except ValueError:
        pass
    else:
        return client.workspaces.get(str(identity))
    me = client.users.me()["username"]
    rows = list(client.workspaces.list(owner=me, name=reference, team=arguments.team))
    if not rows:
        raise Missing(f"You have no workspace “{reference}”.", "`berth ls` lists yours.")
    if len(rows) > 1:
        teams = ", ".join(row["team"] for row in rows)
        raise UsageError(f"You have “{reference}” in several teams.", f"Add --team with one of: {teams}.")
    return rows[0]


@contextlib.contextmanager
def _progress(arguments: argparse.Namespace) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress; with --json it prints nothing."""
    if arguments.json:
        yield _show_nothing
        return
    with Progress(sys.stderr, os.environ) as progress:
        yield progress.show


def _show_nothing(text: str) -> None:
    """Print nothing."""


def print_line(text: str) -> int:
    print(text)
    return 0


def print_json(value: Any) -> int:
    print(json.dumps(value, indent=2, ensure_ascii=False))
    return 0


DIFFERS = 2
SIGNS = {"create": "+", "change": "~", "delete": "-", "by_hand": "!"}


def export(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Print the site as a file."""
    document = client.site.get()
    if arguments.json:
        print_json(document["site"])
    else:
        sys.stdout.write(document["yaml"])
    return 0


def plan_site(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Print what applying a file would change."""
    plan = client.site.plan(_site_text(arguments.file), prune=arguments.prune)
    _print_steps(plan, arguments, "No changes.")
    return 0 if plan["same"] else DIFFERS


def apply_site(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Apply a site file."""
    result = client.site.apply(_site_text(arguments.file), prune=arguments.prune)
    _print_steps(result, arguments, "No changes needed.")
    return 0


def _site_text(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{name} cannot be read: {error}", "Choose a site file, as printed by `berth export`."
        ) from error


def _print_steps(result: dict[str, Any], arguments: argparse.Namespace, none: str) -> None:
    if arguments.json:
        print_json(result)
        return
    if result["same"]:
        print(none)
    for step in result["steps"]:
        print(f"{SIGNS.get(step['act'], '?')} {step['section']} {step['name']}".rstrip())
        for line in step["words"]:
            print(f"    {line}")
