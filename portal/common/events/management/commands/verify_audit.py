"""Compares the audit log with its seals. Exits with 1 where something was changed, added or taken away."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from portal.common.events import sealing
from portal.common.events.models import AuditSeal
from portal.common.events.sealing import Finding, Flaw

WORDS = {
    Flaw.SEAL_MISSING: "the seal before it, which covered entries {first} to {last}, is gone",
    Flaw.SEAL_CHANGED: "it was changed, or made without the portal's secret key",
    Flaw.ENTRIES_ADDED: "there are more entries between {first} and {last} than were sealed",
    Flaw.ENTRIES_MISSING: "entries between {first} and {last} are missing",
    Flaw.ENTRIES_CHANGED: "an entry between {first} and {last} is not as it was sealed",
}


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--head",
            default="",
            metavar="DIGEST",
            help="a head that this command printed before: it must still be one of the seals, which shows"
            " whether the newest were cut off",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        result = sealing.verify()
        problems = [f"Seal {finding.number}: {_format_finding(finding)}." for finding in result.findings]
        if options["head"] and not _is_there(options["head"]):
            problems.append("No seal has the digest given with --head: the newest seals were cut off.")
        self.stdout.write(
            f"{result.entries} entries under {result.seals} seals, {result.open_entries} not sealed yet."
        )
        self.stdout.write(f"head {result.head or '-'}")
        if problems:
            raise CommandError("\n".join((*problems, "Compare the database with a backup from before.")))


def _format_finding(finding: Finding) -> str:
    return WORDS[finding.flaw].format(first=finding.first_id, last=finding.last_id)


def _is_there(head: str) -> bool:
    return AuditSeal.objects.filter(digest=head).exists()
