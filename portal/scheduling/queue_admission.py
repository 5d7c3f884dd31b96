"""Implements the `AdmissionPolicy` port, which decides whether a workspace may enter the queue."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from portal.catalog.environments.selectors import digest_for
from portal.common.errors import NeedsApproval, NotPossible, PortalError
from portal.common.reasons.wording import message_of
from portal.quota.ledger import budgets
from portal.scheduling import snapshot_cache
from portal.scheduling.admission import (
    StartRequest,
    assess,
    denial_verdict,
    homes_of,
    incoming_request,
    is_refused,
    verdict_without_gpus,
)
from portal.scheduling.engine.verdicts import refusal
from portal.scheduling.snapshot import ClusterSnapshot, flavors_by_slug, register
from portal.scheduling.verdicts import Outcome, Verdict
from portal.workspaces import gpu_requests
from portal.workspaces.admission_policy import Admission, AdmissionPolicy
from portal.workspaces.models import Workspace


def _admission_error(verdict: Verdict) -> PortalError:
    """Return the error for a verdict that denies the request, with all details."""
    if verdict.outcome is Outcome.NEEDS_APPROVAL:
        quota_request = verdict.quota_request
        extra: dict[str, Any] = {"blocker": dict(verdict.blocker)} if verdict.blocker else {}
        return NeedsApproval(
            verdict.reason,
            **extra,
            ask=asdict(quota_request) if quota_request else None,
        )
    return NotPossible(
        verdict.reason,
        reasons=[
            {"node": node, "reason": message_of(reason), "code": reason.code.value}
            for node, reason in verdict.reasons
        ],
    )


class QueueAdmission(AdmissionPolicy):
    """Denies the requests that a preview denies. Cycles decide on all other requests."""

    def admit(
        self, workspace: Workspace, *, unapproved: bool = False, gpus_optional: bool = False
    ) -> Admission:
        released = gpus_optional and workspace.accelerated and _starts_only_without_gpus(workspace)
        resources = workspace.resources
        if released:
            resources = {**resources, **gpu_requests.resources_without_gpus(resources)}
        start_request = StartRequest(
            workspace.template,
            workspace.flavor,
            workspace.team,
            workspace.owner,
            resources,
            homes=homes_of(workspace.owner, workspace.team),
            move_home=workspace.move_home,
            blocked=budgets.blocked_teams(),
        )
        if not released:
            start_request = _with_choices(start_request, workspace)
        with snapshot_cache.preview_cache.use() as snapshot:
            verdict = _refusal(snapshot, start_request)
        if verdict is None or (unapproved and verdict.outcome is Outcome.NEEDS_APPROVAL):
            return Admission(without_gpus=released)
        raise _admission_error(verdict)


def _with_choices(start_request: StartRequest, workspace: Workspace) -> StartRequest:
    """Return the request on each flavor that the workspace lists."""
    stored = workspace.flavor_choices
    flavors = flavors_by_slug(choice["flavor"] for choice in stored)
    requests = [
        replace(start_request, flavor=flavors[choice["flavor"]], resources=choice["resources"])
        for choice in stored
        if choice["flavor"] in flavors
    ]
    return replace(requests[0], fallbacks=tuple(requests[1:])) if requests else start_request


def _starts_only_without_gpus(workspace: Workspace) -> bool:
    """Return whether a new workspace would have to wait with accelerators, but start at once without them."""
    version = workspace.environment_version
    request: dict[str, Any] = {
        "template": workspace.template,
        "flavor": workspace.flavor,
        "team": workspace.team,
        "actor": workspace.owner,
        "priority": workspace.priority,
        "expected_s": workspace.expected_s,
        "environment": digest_for(version) if version is not None else "",
        "move_home": workspace.move_home,
    }
    return verdict_without_gpus(assess(**request), **request) is not None


def _refusal(snapshot: ClusterSnapshot, start_request: StartRequest) -> Verdict | None:
    """Return the verdict if it denies the request."""
    assert start_request.team is not None  # every workspace has a team
    incoming = incoming_request(snapshot, start_request, start_request.team)
    if isinstance(incoming, Verdict):
        return incoming
    with snapshot.placer.trial():
        pending = register(snapshot.scheduler, snapshot.placer, incoming)
        shortfall = refusal(snapshot.scheduler, pending.workload)
        return (
            denial_verdict(snapshot, start_request, pending, *shortfall)
            if shortfall is not None and is_refused(*shortfall)
            else None
        )
