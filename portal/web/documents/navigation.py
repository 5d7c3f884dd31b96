"""Navigation of the documentation, by the four kinds of Diátaxis, in reading order."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


@dataclass(frozen=True, slots=True)
class Group:
    """Documents of a kind for the same readers. `weight` is their search weight."""

    title: str | Promise
    names: tuple[str, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the four kinds of documents, with its purpose."""

    title: str | Promise
    summary: str | Promise
    groups: tuple[Group, ...]


KINDS = (
    Kind(
        _("Tutorials"),
        _("Learn Berth step by step."),
        (Group(_("Start here"), ("tutorial-first-notebook", "tutorial-administrator")),),
    ),
    Kind(
        _("How-to guides"),
        _("Instructions for single tasks."),
        (
            Group(
                _("For everyone"),
                (
                    *("troubleshooting", "command-line", "environments", "repositories", "secrets", "files"),
                    *("resize", "progress", "notices", "webhooks", "ci"),
                ),
                1.2,
            ),
            Group(
                _("For owners, approvers and operators"),
                ("quotas", "cohorts", "gpu-hours", "delegates", "people", "catalog", "site-file",
                 "reclaim-policies", "reports"),
                1.2,
            ),
            Group(
                _("For administrators"),
                ("first-server", "operations", "maintenance", "runbook", "multiuser", "machines",
                 "gpu-server", "gpu-repair", "environment-builds", "systemd", "web-hosts", "containers",
                 "postgresql", "tls", "sign-in", "scim", "account-security", "audit-log", "monitoring",
                 "backup"),
                1.1,
            ),
            Group(_("For developers"), ("testing",), 0.4),
        ),
    ),
    Kind(
        _("Reference"),
        _("Commands, settings, formats and codes."),
        (
            Group(_("Interfaces"), ("api", "cli", "settings"), 0.9),
            Group(_("GPUs"), ("gpus", "gpu-check", "gpu-faults", "engines"), 1.1),
            Group(_("Terms, roles and codes"), ("states", "reason-codes", "roles", "vocabulary"), 0.7),
            Group(_("For auditors"), ("security", "asvs", "asvs-evidence"), 0.6),
            Group(
                _("Measurements and tests"),
                ("measurements", "capacity", "benchmarks", "gpu-check-evidence", "gpu-check-mutants"),
                0.4,
            ),
            Group(_("Versions"), ("releasing", "changelog"), 0.3),
        ),
    ),
    Kind(
        _("Explanation"),
        _("Background and design."),
        (
            Group(
                _("How Berth decides"),
                ("scheduling", "placement", "reclaim", "rebalancing"),
                1.1,
            ),
            Group(_("Security and resilience"), ("threats", "recovery"), 0.9),
            Group(_("How it is built"), ("architecture",), 0.9),
        ),
    ),
)  # fmt: skip

DECISIONS = Group(_("Decisions"), (), 0.3)
"""The pages of `docs/adr/`, which are listed from the files."""


def ordered() -> tuple[str, ...]:
    """Return all documents except decisions, in reading order."""
    return tuple(name for kind in KINDS for group in kind.groups for name in group.names)


def place_of(name: str) -> tuple[Kind, Group]:
    """Return the kind and group of a document. Raises `LookupError`."""
    for kind in KINDS:
        for group in kind.groups:
            if name in group.names:
                return kind, group
    if name == "adr" or name.startswith("adr/"):
        return KINDS[-1], DECISIONS
    raise LookupError(name)


def neighbours(name: str) -> tuple[str | None, str | None]:
    """Return the previous and next document of the same kind."""
    kind, group = place_of(name)
    names = [name_ for kind_group in kind.groups for name_ in kind_group.names]
    if group is DECISIONS:
        return None, None
    at = names.index(name)
    return (names[at - 1] if at else None), (names[at + 1] if at + 1 < len(names) else None)
