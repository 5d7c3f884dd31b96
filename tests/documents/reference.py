"""Write the generated pages of docs/: `python -m tests.documents.reference`.

Commands come from the parser of `berth`, codes from `portal.common.reasons`, states from the enumerations of
the models.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path

import django
from django.utils.functional import Promise

from provisioning.traits import Traits

DOCS = Path(__file__).resolve().parents[2] / "docs"
GENERATED = "Made by `python -m tests.documents.reference`; a test compares it with the code."
EVERYWHERE = ("--json", "--quiet")
"""Options of every command, listed once."""
SHARED_BY = 8
"""Rows of arguments that at least this many commands share are listed once."""
SUBJECTS = {
    "Rule": "Rules that keep a request waiting",
    "PlacementCode": "Placement on nodes and devices",
    "AdmissionCode": "Verdicts on a request",
    "MoveCode": "Running workspaces that stay where they are",
    "WaitBasis": "Expected starts",
    "MemberOrderCode": "Turns of members",
    "CommonCode": "All requests",
    "EventCode": "Event streams and notices",
    "HistoryCode": "Earlier versions",
    "AccountCode": "People, teams and tokens",
    "InvitationCode": "Invitations of many people",
    "MfaCode": "Two-step sign-in",
    "IdentityCode": "Sign-in by providers",
    "InventoryCode": "Pools, nodes and devices",
    "AnnouncementCode": "Announcements",
    "MapCode": "Map of GPUs",
    "SelectionCode": "Acts on selected workspaces",
    "CatalogCode": "Templates and flavors",
    "WorkspaceCode": "Workspaces",
    "CheckCode": "GPU checks",
    "QuotaCode": "Quotas",
    "LedgerCode": "GPU-hours",
    "ReservationCode": "Reservations",
    "RequestCode": "Quota requests",
    "WebhookCode": "Webhooks",
    "ChannelCode": "Channels of notices",
    "ServiceAccountCode": "Service accounts",
    "ExchangeCode": "Token exchanges",
    "JoinCode": "Requests to join a team",
    "ScimCode": "SCIM",
    "MachineCode": "Machines that join",
    "SiteCode": "Site files",
    "EnvironmentCode": "Software environments",
    "FileCode": "Files of home folders",
    "SecretCode": "Secrets for workspaces",
    "ExtensionCode": "Extensions",
    "LifetimeCode": "Lifetimes",
    "EfficiencyCode": "Use of GPUs",
    "ReportCode": "Reports",
    "OrphanCode": "What is left over on nodes",
    "RepositoryCode": "Addresses of repositories",
    "GitCode": "Cloned repositories",
    "HomeMoveCode": "Homes that are moved",
    "ArchiveCode": "Archived homes",
    "RebalanceCode": "Moves to better places",
    "MemoryCode": "Memory of workspaces",
    "ShareCode": "Shares of GPUs",
}
"""Heading of each enumeration of codes, in the order of the page."""


def cli() -> str:
    """Every command of `berth`, with its arguments."""
    from portal.cli.parser import parser

    top = parser()
    parts = [
        "# Command line",
        "",
        f"{top.description} {GENERATED}",
        "",
        "```",
        (top.epilog or "").strip(),
        "```",
    ]
    tables = {words: _arguments(command) for words, command in commands(top)}
    shared = _shared(tables.values())
    parts += ["", "Every command has the options `--help`, and:", "", *_table(_of_every(top))]
    parts += ["", "Shared by several commands, as their usage shows:", "", *_table(shared)]
    for words, command in commands(top):
        parts += ["", f"## {words}", (command.description or "").strip()]
        parts += ["", f"`{_usage(words, command)}`"] if _own(command) else []
        parts += ["", "```", command.epilog.strip(), "```"] if command.epilog else []
        rows = [row for row in tables[words] if row not in shared]
        parts += ["", *_table(rows)] if rows else []
    return "\n".join(parts) + "\n"


def _table(rows: Iterable[str]) -> list[str]:
    return ["| argument | meaning |", "|---|---|", *rows]


def _shared(tables: Iterable[list[str]]) -> list[str]:
    """The rows of arguments of at least `SHARED_BY` commands, most common first."""
    shared: dict[str, str] = {}
    for row, count in Counter(row for rows in tables for row in rows).most_common():
        if count >= SHARED_BY:
            shared.setdefault(row.split(" | ")[0], row)
    return list(shared.values())


def _of_every(top: argparse.ArgumentParser) -> list[str]:
    """Rows of the options of every command."""
    _, first = next(commands(top))
    return [f"| `{', '.join(action.option_strings)}` | {action.help} |" for action in first._actions
            if not set(EVERYWHERE).isdisjoint(action.option_strings)]  # fmt: skip


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands of a parser by their words. A group is one too if it runs by itself."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                if command.get_default("function"):
                    yield f"{parser.prog} {name}", command
                yield from commands(command)


def _arguments(command: argparse.ArgumentParser) -> list[str]:
    """Rows of a command's own arguments. Those without help are only in the usage."""
    return [_argument(action) for action in _own(command) if action.help]


def _own(command: argparse.ArgumentParser) -> list[argparse.Action]:
    """A command's actions, without help, subcommands and common options."""
    return [
        action
        for action in command._actions
        if action.help != argparse.SUPPRESS
        and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
        and set(EVERYWHERE).isdisjoint(action.option_strings)
    ]


def _usage(words: str, command: argparse.ArgumentParser) -> str:
    """One line: options, then positional arguments. Brackets mark optional ones, “…” repeatable ones."""
    if command.usage:
        return command.usage
    parts = [words]
    for action in sorted(_own(command), key=lambda action: not action.option_strings):
        text = _value(action)
        if action.option_strings:
            text = f"{action.option_strings[-1]} {text}".strip()
        if isinstance(action, argparse._AppendAction) or action.nargs in ("+", argparse.REMAINDER):
            text += " …"
        parts.append(text if action.required else f"[{text}]")
    return " ".join(parts)


def _value(action: argparse.Action) -> str:
    """The placeholder of an argument's value; empty for a flag."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(map(str, action.choices)) if action.choices is not None else action.dest.upper()


def _argument(action: argparse.Action) -> str:
    value = _value(action)
    if action.option_strings:
        names = ", ".join(f"`{f'{string} {value}'.strip()}`" for string in action.option_strings)
    else:
        names = f"`{value}`"
    default = action.default if isinstance(action.default, int | float | str) else None
    words = (action.help or "") % {"default": default, "prog": "berth"}
    return f"| {names.replace('|', chr(92) + '|')} | {_safe(words)} |"


def reason_codes() -> str:
    """Every code with its text and what to do next."""
    from portal.common.problem_codes import ProblemCode
    from portal.common.reasons.registry import registry
    from portal.common.reasons.wording import text_of

    parts = [
        "# Reason codes",
        "",
        "Why something is refused, waits or is as it is. A problem of REST has the code in "
        "`reason.code`, with the values of the text in `reason.params`; pages show the sentence. Names in "
        "braces are those values. " + GENERATED,
    ]
    order = list(SUBJECTS)
    for member in sorted(registry.enumerations, key=lambda codes: order.index(codes.__name__)):
        title = SUBJECTS[member.__name__]
        parts += ["", f"## {title}", (member.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")]
        for code in member:
            text = text_of(code)
            next_step = _format(text.next_action)
            parts += ["", f"### `{code.value}`", _format(text.message)]
            if next_step == "{action}":
                next_step = "what the page, or `next_action`, says."
            parts += ["", f"What to do: {next_step}"] if next_step else []
    parts += [
        "",
        "## Kinds of problems",
        "A problem's `code`, where it is not its reason's; `type` is `urn:berth:problem:` and the code.",
        "",
        *(f"- `{member.value}`" for member in ProblemCode),
    ]
    return "\n".join(parts) + "\n"


def _format(pattern: object) -> str:
    """A text's format as shown to users; the general form of a plural."""
    words: dict[str, str] = {}
    if isinstance(pattern, Promise):
        arguments = getattr(pattern, "_kw", None) or pattern.__reduce__()[1][-1]  # type: ignore[index]
        words = arguments if isinstance(arguments, dict) else {}
    text = words.get("plural") or str(pattern)
    return _safe(re.sub(r"%\((\w+)\)[sd]", r"{\1}", text).replace("%%", "%"))


def _safe(text: str) -> str:
    return text.replace("*", r"\*").replace("<", r"\<").replace("|", r"\|")


def states() -> str:
    """The values of states in REST, with their labels on pages."""
    from portal.catalog.environments.models import BuildState, VersionState
    from portal.fleet.inventory.device_states import LOOKS
    from portal.fleet.inventory.models import PoolState
    from portal.fleet.machines.models import MachineState
    from portal.gpu_checks.models import CheckVerdict, RunState
    from portal.notify.webhooks.models import DeliveryState
    from portal.people.accounts.models import AccountState
    from portal.people.join_requests.models import JoinState
    from portal.quota.requests.models import RequestState
    from portal.quota.reservations.models import ReservationState
    from portal.workspaces.lifecycle import (
        TRANSITIONS,
        PreemptionCause,
        QueueOutcome,
        State,
        TerminationReason,
    )
    from portal.workspaces.models.homes import EvacuationState, HomeArchiveState, HomeMoveState
    from portal.workspaces.orphans.models import OrphanState

    parts = [
        "# States",
        "",
        "State values in REST, and their labels on pages. " + GENERATED,
        "",
        "## Workspaces",
        "When workspaces stop: [reclaim.md](reclaim.md). After failures: [recovery.md](recovery.md).",
        "",
        "| state | on pages | leads to |",
        "|---|---|---|",
    ]
    for state in State:
        leads = sorted({to.value for (of, _), to in TRANSITIONS.items() if of is state})
        parts.append(
            f"| `{state.value}` | {state.label} | {', '.join(f'`{lead}`' for lead in leads) or '–'} |"
        )
    parts += ["", "## GPUs and other devices", "Meaning: [gpus.md](gpus.md#what-a-state-means).", ""]
    parts += ["| state | on pages |", "|---|---|"]
    parts += [f"| `{state.value}` | {look.word} |" for state, look in LOOKS.items()]
    for title, choices in (
        ("Workspaces in the queue", QueueOutcome),
        ("Causes of preemption", PreemptionCause),
        ("Reasons of termination", TerminationReason),
        ("Pools", PoolState),
        ("Machines", MachineState),
        ("GPU checks", RunState),
        ("Verdicts of GPU checks", CheckVerdict),
        ("Quota requests", RequestState),
        ("Reservations", ReservationState),
        ("Requests to join a team", JoinState),
        ("Accounts", AccountState),
        ("Versions of software environments", VersionState),
        ("Builds of software environments", BuildState),
        ("Moves of homes", HomeMoveState),
        ("Evacuations of machines", EvacuationState),
        ("Archives of homes", HomeArchiveState),
        ("Leftovers on nodes", OrphanState),
        ("Deliveries of webhooks", DeliveryState),
    ):
        parts += ["", f"## {title}", "| value | on pages |", "|---|---|"]
        parts += [f"| `{choice.value}` | {choice.label} |" for choice in choices if choice.value]
    return "\n".join(parts) + "\n"


def engines() -> str:
    """The traits of each driver, and what their values mean."""
    from provisioning.registry import DRIVERS, traits_of
    from provisioning.traits import AppReach, DeviceChecks, HomeStorage, Plane, SoftwareSource

    drivers = {name: traits_of(name) for name in sorted(DRIVERS)}
    parts = [
        "# Drivers and engines",
        "",
        "A pool has a driver, and a driver declares traits. They decide what the portal asks of the pool and "
        "offers there. REST: `traits` in `GET /api/v1/pools`. " + GENERATED,
        "",
        f"| trait | {' | '.join(drivers)} |",
        f"|---|{'---|' * len(drivers)}",
    ]
    for field in fields(Traits):
        values = (_trait(getattr(traits, field.name)) for traits in drivers.values())
        parts.append(f"| `{field.name}` | {' | '.join(values)} |")
    parts += ["", "| trait | meaning |", "|---|---|"]
    kinds = {"plane": Plane, "homes": HomeStorage, "software": SoftwareSource}
    kinds |= {"reach": AppReach, "device_checks": DeviceChecks}
    for name, kind in kinds.items():
        parts.append(f"| `{name}` | {(kind.__doc__ or '').strip()} |")
    parts += [
        "| `measured` | Whether nodes send measurements of devices, workspaces and homes. |",
        "| `limits_egress`, `limits_homes` | Whether egress policies and home limits are enforced. |",
        "| `starting_observe_s` | Seconds between two observations of a workspace that starts. |",
    ]
    return "\n".join(parts) + "\n"


def _trait(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value.value}`" if isinstance(value, Enum) else f"{value:g}"


PAGES: dict[str, Callable[[], str]] = {
    "cli": cli,
    "engines": engines,
    "reason-codes": reason_codes,
    "states": states,
}


def main() -> None:
    """Write all pages."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    django.setup()
    for name, write in PAGES.items():
        (DOCS / f"{name}.md").write_text(write())


if __name__ == "__main__":
    main()
