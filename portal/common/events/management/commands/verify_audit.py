"""Check the audit log against its seals. The exit code is 1 if entries were changed, added or deleted."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from portal.common.events import sealing
from portal.common.events.models import AuditSeal
from portal.common.events.sealing import Finding, Flaw

WORDS = {
    Flaw.SEAL_MISSING: "the previous seal, of entries {first} to {last}, is missing",
    Flaw.SEAL_CHANGED: "it was changed, or created without the portal's secret key",
    Flaw.ENTRIES_ADDED: "entries were added between {first} and {last}",
    Flaw.ENTRIES_MISSING: "entries between {first} and {last} are missing",
    Flaw.ENTRIES_CHANGED: "an entry between {first} and {last} was changed",
}


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--head",
            default="",
            metavar="DIGEST",
            help="head printed by an earlier run. It must still be a seal; otherwise the newest seals were"
            " deleted",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        result = sealing.verify()
        problems = [f"Seal {finding.number}: {_format_finding(finding)}." for finding in result.findings]
        if options["head"] and not _is_there(options["head"]):
            problems.append("No seal has the digest of --head: the newest seals were deleted.")
        self.stdout.write(
            f"{result.entries} entries under {result.seals} seals, {result.open_entries} not sealed yet."
        )
        self.stdout.write(f"head {result.head or '-'}")
        if problems:
            raise CommandError("\n".join((*problems, "Compare the database with an older backup.")))


def _format_finding(finding: Finding) -> str:
    return WORDS[finding.flaw].format(first=finding.first_id, last=finding.last_id)


def _is_there(head: str) -> bool:
    return AuditSeal.objects.filter(digest=head).exists()
