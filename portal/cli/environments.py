"""`berth environments …`: software environments and their builds."""

from __future__ import annotations

import argparse
import codecs
import sys
import time
from pathlib import Path
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_table
from portal.cli.errors import EXIT_REFUSED, CliError, Missing, TimedOut, Unreachable, UsageError

POLL_INTERVAL_S = 2.0
LINES_BEFORE = 5
"""Lines of the log to show before the failed one."""
Version = dict[str, Any]


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    rows = list(client.environments.list(team=arguments.team))
    if arguments.json:
        return print_json(rows)
    table: list[tuple[str, ...]] = [("NAME", "TEAM", "PYTHON", "CURRENT", "MIB", "DESCRIPTION")]
    for row in rows:
        current = row["current"]
        number = (
            "on every node" if row["kind"] == "node" else str(current["number"]) if current else "none yet"
        )
        size = str(current["size_mib"]) if current else ""
        state = "" if row["enabled"] else " (off)"
        python = "" if row["kind"] == "node" else row["python"]
        table.append((row["slug"], row["team"] or "", python, f"{number}{state}", size, row["description"]))
    return print_table(table)


def build(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Build an environment from a file, as a new version if it exists. With --wait, follow the build."""
    fields: dict[str, str] = {}
    if arguments.source:
        kind, text = _source(arguments.source)
        fields = {"source_kind": kind, "source": text, "python": arguments.python}
    slug = arguments.name
    try:
        version = client.environments.build(slug, **fields)
    except Missing:
        if not fields:
            raise
        slug, version = _create_environment(client, arguments, fields)
    show = _show_nothing if arguments.json else _print_progress
    show(f"{slug}: version {version['number']} queued.")
    if arguments.wait:
        version = _wait_for_build(client, slug, version["number"], timeout_s=arguments.timeout, show=show)
    failed = version["state"] == "failed"
    if arguments.json:
        print_json({"environment": slug, **version})
    elif failed:
        raise CliError(*_failure_reason(client, slug, version, arguments.source))
    elif arguments.wait:
        print(f"{slug}: version {version['number']} is ready, {version['size_mib']} MiB.")
    return EXIT_REFUSED if failed else 0


def _create_environment(
    client: BerthClient, arguments: argparse.Namespace, fields: dict[str, str]
) -> tuple[str, Version]:
    """Create an environment; return its slug and first version."""
    environment = client.environments.create(
        name=arguments.name, slug=arguments.name, team=arguments.team, **fields
    )
    return environment["slug"], next(client.environments.versions(environment["slug"]))


def _source(name: str) -> tuple[str, str]:
    """Return the kind and text of a source file. Raises `UsageError`."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        # PowerShell writes UTF-16.
        is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{name} cannot be read: {error}",
            "Choose a requirements.txt, a pyproject.toml, an environment.yml or a lock file.",
        ) from error
    if name.endswith(".toml"):
        return "pyproject", text
    return ("lock" if "--hash=" in text else "requirements"), text


def _wait_for_build(client: BerthClient, slug: str, number: int, *, timeout_s: float, show: Any) -> Version:
    """Return the version once it is ready or has finally failed.

    Raises `TimedOut`; the build continues.
    """
    ends_at = time.monotonic() + timeout_s
    last_line = ""
    while True:
        try:
            version = client.environments.version(slug, number)
            line = _line(client, slug, version)
            if version["state"] == "ready" or (version["state"] == "failed" and not version["retry_at"]):
                return version
        except Unreachable as error:
            # The portal may be restarting; the build continues.
            if time.monotonic() > ends_at:
                raise
            line = f"{error.message} Retrying …"
        if line != last_line:
            show(line)
            last_line = line
        if time.monotonic() > ends_at:
            raise TimedOut(
                f"{slug} version {number} was not ready after {timeout_s:g} s. Its build continues.",
                f"See {client.base_url}/environments/{slug}/",
            )
        time.sleep(POLL_INTERVAL_S)


def _line(client: BerthClient, slug: str, version: Version) -> str:
    """Return the progress as one line."""
    if version["state"] == "failed":
        return f"{version['message']} Retrying."
    newest = next(client.environments.builds(slug, version["number"]), None)
    if newest is None:
        return "Waiting for a node."
    if newest["state"] == "queued" or not newest["stage"]:
        return f"Waiting for {newest['node']}."
    progress = f" {newest['done']} of {newest['total']}" if newest["total"] else ""
    return f"{newest['stage'].capitalize()}{progress} on {newest['node']}, {newest['percent'] or 0} %"


def _failure_reason(client: BerthClient, slug: str, version: Version, source: str) -> tuple[str, str]:
    """Return why a build failed, with the failed lines of source and log, and where the full log is."""
    params = (version["failure"] or {}).get("params", {})
    lines = [text for text in (version["message"], version.get("next_action")) if text]
    # The portal translates an environment.yml, so line numbers refer to the list on the page.
    if (number := params.get("source_line")) and source and not source.endswith((".yml", ".yaml")):
        lines.append(f"  {source}, line {number}")
    failed_build = next(client.environments.builds(slug, version["number"]), None)
    if failed_build is not None:
        lines += [
            f"  | {line}"
            for line in _log_excerpt(client.environments.build_log(slug, failed_build["id"]), params)
        ]
    page = f"{client.base_url}/environments/{slug}/"
    where = f"{page}builds/{failed_build['id']}/" if failed_build is not None else page
    return "\n".join(lines), f"Full log: {where}"


def _log_excerpt(log: str, params: dict[str, Any]) -> list[str]:
    """Return the failed line of the log, marked, and the lines before it; otherwise the last lines."""
    lines = log.rstrip("\n").split("\n")
    log_line = " ".join(str(params.get("log_line") or "").split())
    matches = [at for at, line in enumerate(lines) if log_line and log_line in " ".join(line.split())]
    if not matches:
        return lines[-LINES_BEFORE:] if log else []
    at = matches[-1]
    return [*lines[max(0, at - LINES_BEFORE) : at], f"{lines[at]}    <-- failed here"]


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show_nothing(text: str) -> None:
    """Print nothing, because JSON is printed."""
