"""What names mean that mean the same wherever they stand, for fields and paths that say nothing themselves.

A field's own `help_text` wins. A name whose meaning differs from one schema to the next has none here, or is
left out for those of `ELSE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from portal.web.openapi.examples import example_of
from portal.web.openapi.more_meanings import MORE, OF_SCHEMAS, SCHEMAS

FIELDS: Mapping[str, str] = {
    # What it is.
    "id": "Identifies it, and never changes.",
    "slug": "Short name, unique among its kind; it stands in addresses.",
    "username": "Name of the account.",
    "email": "E-mail address of the account.",
    "name": "Its name.",
    "team_name": "Name of the team, for people.",
    "prefix": "Its first signs, to tell it from others.",
    "description": "What people should know about it.",
    "message": "A sentence for people.",
    "next_action": "What to do about it, in a sentence; empty where there is nothing to do.",
    "detail": "More about it, for people.",
    "title": "What people see it as.",
    "note": "A note for people.",
    "reason": "Why, in words.",
    "cordoned": "Whether nothing new is placed on it.",
    "cordon_reason": "Why nothing new is placed on it, in words.",
    "preemptible": "Whether it may have to make room for others.",
    "position": "Place in lists; the lowest number comes first.",
    "eta": "When it is expected to start; null where nothing is known.",
    "eta_basis": "What the expectation rests on.",
    "granted_amount": "How much was granted, in the resource's base unit.",
    "ready_path": "Path that answers once the program is ready.",
    "open_path": "Path that is opened in it.",
    "decision_note": "What was said with the decision.",
    "simulated": "Whether it is simulated instead of real hardware.",
    "enabled": "Whether it is switched on.",
    "deprecated": "Whether another one should be chosen for what is new.",
    "successor": "Short name of what takes its place; null where there is none.",
    "scopes": "What it may be used for.",
    "roles": "Roles in the whole site.",
    "results": "The rows, in the order of the list.",
    "warnings": "What to know about it that does not keep it from working.",
    # Whose, where and of what.
    "team": "Short name of the team.",
    "owner": "Name of the account that owns it.",
    "requester": "Name of whoever asked.",
    "template": "Short name of the template.",
    "flavor": "Short name of the flavor.",
    "pool": "Short name of the pool.",
    "node": "Name of the node.",
    "workspace": "Id of the workspace.",
    "resource": "Which resource, as `gpu:h100`.",
    "amount": "How much, in the resource's base unit.",
    "quota": "How much is guaranteed, in the resource's base unit.",
    "cohort": "Short name of the cohort.",
    # By whom.
    "actor": "Who did it, as people know them.",
    "created_by": "Who made it; null where no account is known.",
    "updated_by": "Who changed it last.",
    "granted_by": "Who gave it.",
    "decided_by": "Who decided it.",
    "linked_by": "How it came to be linked.",
    # When. All times are UTC.
    "at": "When it happened.",
    "created_at": "When it was made.",
    "updated_at": "When it was last changed.",
    "changed_at": "When it was last changed.",
    "asked_at": "When it was asked for.",
    "requested_at": "When it was asked for.",
    "admitted_at": "When it was let in from the queue.",
    "placed_at": "When it was given nodes.",
    "launched_at": "When its start was sent to the nodes.",
    "ready_at": "When it was ready.",
    "made_at": "When it was made.",
    "started_at": "When it began.",
    "finished_at": "When it was over.",
    "ended_at": "When it was over.",
    "starts_at": "When it begins.",
    "ends_at": "When it ends.",
    "expires_at": "When it ends by itself.",
    "decided_at": "When it was decided.",
    "deactivated_at": "When the account was deactivated.",
    "delivered_at": "When a workspace last got it.",
    "first_seen_at": "When it was first seen.",
    "heard_at": "When it was last heard from.",
    "joined_at": "When it joined.",
    "last_sign_in_at": "Time of the last sign-in.",
    "last_used_at": "When it was last used.",
    "next_attempt_at": "When it is tried again.",
    "observed_at": "When it was last looked at.",
    "read_at": "When it was read.",
    "retry_at": "When it is tried again.",
    "seen_at": "When it was last seen.",
    "lost_at": "When it was lost.",
    "granted_until": "Until when it was granted.",
    # How much of it.
    "cpu_milli": "Thousandths of a CPU core.",
    "memory_mib": "Memory in MiB.",
    "disk_mib": "Space on the disk in MiB.",
    "size_bytes": "Size in bytes.",
    "size_mib": "Size in MiB.",
    "duration_ms": "How long it took, in milliseconds.",
    "mig_profile": "Profile of the MIG instance, as `1g.10gb`.",
    "model": "Model of the accelerator.",
    "uuid": "Of the accelerator, as its driver names it.",
    "start_timeout_s": "How long a start may take, in seconds.",
    "stop_timeout_s": "How long a program has to end by itself, in seconds.",
    "status_code": "Status of the answer.",
    # Who was there.
    "address": "Address that it came from.",
    "user_agent": "What the program said it was.",
    "request_id": "Of the request; it stands in the portal's log.",
    **MORE,
}
ELSE: Mapping[str, frozenset[str]] = {
    "amount": frozenset({"LedgerEntry", "Borrower"}),
    "at": frozenset({"Preempting", "Checkout"}),
    "detail": frozenset({"Orphan"}),
    "enabled": frozenset({"Provider"}),
    "memory_mib": frozenset({"SamplePoint"}),
    "reason": frozenset({"Missing", "Warning"}),
    "message": frozenset({"JoinRequest"}),
    "resource": frozenset({"Bar", "Queue"}),
    "team": frozenset({"Borrower", "ReclaimInterruption", "PreviewTeam", "GpuUse"}),
    "title": frozenset({"Reservation", "ReservationCreateRequest", "ReservationWriteRequest"}),
    "username": frozenset({"Grant"}),
}
"""Schemas in which a name means something else, or something of its own."""
OWN: Mapping[str, str] = {
    "Attempt.number": "Which attempt it is, from 1.",
    "Attempt.error": "Why it failed, in words; empty where it did not.",
    "CheckedCondition.claim": "Name of the claim.",
    "CheckedCondition.holds": "Whether the claims meet it.",
    "Condition.claim": "Name of the claim.",
    "Condition.value": "What the claim has to be.",
    "ConditionRequest.claim": "Name of the claim.",
    "ConditionRequest.value": "What the claim has to be.",
    "Grant.username": "Name of the account that it is for; null where it is for all of the team.",
    "JoinRequest.message": "What the asker says to the team's owners.",
    "Preempting.at": "When it is stopped, unless it is spared until then.",
    "OwnPackage.version": "Version of the package that is installed.",
    "Package.version": "Version of the package.",
    "Reservation.title": "What it is for.",
    "ReservationCreateRequest.title": "What it is for.",
    "ReservationWriteRequest.title": "What it is for.",
    "Queue.position": "Place in the queue, from 1; null where it does not wait.",
    "Revision.number": "Number of the version, from 1.",
    "Version.number": "Number of the version, from 1.",
    "VersionDetail.number": "Number of the version, from 1.",
    "WorkspaceCreateRequest.template": "Short name of the template that it starts from.",
    "WorkspaceCreateRequest.flavor": "Short name of the flavor, which says what it gets.",
    "WorkspaceCreateRequest.name": "Its name, unique among those of its user in the team.",
    **{f"{schema}.{name}": text for schema, of in OF_SCHEMAS.items() for name, text in of.items()},
}
"""Of one field of one schema."""
_OF_SLUGS: Mapping[str, str] = {
    "cohorts": "cohort",
    "environments": "software environment",
    "flavors": "flavor",
    "ledgers": "team whose ledger it is",
    "budgets": "team whose ledger it is",
    "pools": "pool",
    "teams": "team",
    "templates": "template",
}
_OF_PATHS: Mapping[str, str] = {
    "idp": "Id of the sign-in provider.",
    "name": "Name of the secret.",
    "number": "Number of the version, from 1.",
    "resource": "Which resource, as `gpu:h100`.",
}


def of_field(schema: str, name: str) -> str:
    """What a field means, or an empty string where only its own schema can say."""
    own = OWN.get(f"{schema}.{name}")
    if own is not None:
        return own
    return "" if schema in ELSE.get(name, ()) else FIELDS.get(name, "")


def of_path(path: str, name: str) -> str:
    """What a parameter of an address means."""
    before = path.partition(f"/{{{name}}}")[0].rpartition("/")[2]
    if name == "slug":
        return f"Short name of the {_OF_SLUGS[before]}."
    if name == "username":
        return f"Name of the {'service account' if before == 'service-accounts' else 'account'}."
    if name.endswith("_id"):
        one = f"{before[:-3]}y" if before.endswith("ies") else before.removesuffix("s")
        return f"Id of the {one.replace('-', ' ').replace('gpu', 'GPU')}."
    return _OF_PATHS[name]


def describe(result: dict[str, Any]) -> None:
    """Give schemas, fields and the parameters of addresses their meanings, where they have none."""
    takers = {schema: name for name, schema in _bodies(result)}
    for schema, definition in result["components"]["schemas"].items():
        if not definition.get("description") and "enum" not in definition:
            definition["description"] = _of_schema(schema, takers)
    for schema, definition in result["components"]["schemas"].items():
        for name, field in definition.get("properties", {}).items():
            meaning = "" if field.get("description") else of_field(schema, name)
            if meaning and "$ref" in field:
                field |= {"allOf": [{"$ref": field.pop("$ref")}]}
            if meaning:
                field["description"] = meaning
            written = schema in takers or schema.endswith("Request")
            if written and not {"example", "examples"} & field.keys():
                example = example_of(name, field)
                if example is not None:
                    field["examples"] = [example]
    for path, methods in result["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path" and not parameter.get("description"):
                    parameter["description"] = of_path(path, parameter["name"])


def _of_schema(schema: str, takers: Mapping[str, str]) -> str:
    if own := SCHEMAS.get(schema) or SCHEMAS.get(schema.removesuffix("Request")):
        return own
    if schema in takers:
        return f"What `{takers[schema]}` takes."
    if schema.startswith("Paginated"):
        return "A page of a list: follow `next` until it is null."
    return ""  # A test says which.


def _bodies(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Operations with the schema of what they take."""
    for methods in result["paths"].values():
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                yield operation["operationId"], content["schema"].get("$ref", "").rpartition("/")[2]
