"""OpenAPI description of problem documents (RFC 9457), for all errors of the REST API.

Includes the additional members (`PortalError.extra`), so that one definition covers every response.
`tests.api.conftest.problem` validates each error that a test receives.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.common.problem_codes import ProblemCode
from portal.common.reasons.registry import registry


@extend_schema_field({"$ref": "#/components/schemas/ReasonCode"})
class ReasonCodeField(serializers.CharField):
    """A registered reason code. Defined once in `schemas`."""


@extend_schema_field({"$ref": "#/components/schemas/ProblemCode"})
class ProblemCodeField(serializers.CharField):
    """A `ProblemCode`, or the code of the reason for refusals without their own kind."""


def schemas() -> dict[str, Any]:
    """Return definitions for the OpenAPI document by name."""
    reason_codes = sorted(code.value for enumeration in registry.enumerations for code in enumeration)
    return {
        "ReasonCode": {
            "type": "string",
            "enum": reason_codes,
            "description": "Reason code for an error, a wait or a state. Codes may be added.",
        },
        "ProblemCode": {
            "description": (
                "Error code: one of these, or the code of its reason. Codes are stable once released. "
                "Handle an unknown code by its HTTP status."
            ),
            "anyOf": [
                {"type": "string", "enum": [code.value for code in ProblemCode]},
                {"$ref": "#/components/schemas/ReasonCode"},
            ],
        },
    }


class ReasonSerializer(serializers.Serializer[Any]):
    """Machine-readable reason: compare `code`, read `params`."""

    code = ReasonCodeField(help_text="Reason code.")
    params = serializers.DictField(help_text="Parameters of the reason: names, and amounts in base units.")


@extend_schema_field({"type": "array", "items": {"$ref": "#/components/schemas/NodeReason"}})
class NodeReasonsField(serializers.ListField):
    """Reasons by node, as in verdicts (`portal.scheduling.serializers`)."""


@extend_schema_field({"$ref": "#/components/schemas/Blocker"})
class BlockerField(serializers.DictField):
    """The blocking rule, as in verdicts."""


@extend_schema_field({"$ref": "#/components/schemas/Ask"})
class AskField(serializers.DictField):
    """The quota request to create for an approval, as in verdicts."""


class ProblemSerializer(serializers.Serializer[Any]):
    """A problem (RFC 9457).

    Members may be added: ignore unknown ones, and handle an unknown `code` by `status`.
    """

    type = serializers.CharField(help_text="`urn:berth:problem:` and the code.")
    title = serializers.CharField(help_text="Short summary of the error.")
    status = serializers.IntegerField(min_value=400, max_value=599, help_text="HTTP status of the response.")
    code = ProblemCodeField(help_text="Error code.")
    detail = serializers.CharField(help_text="Explanation, as a sentence.")
    next_action = serializers.CharField(required=False, help_text="Suggested next action, as a sentence.")
    instance = serializers.CharField(required=False, help_text="Path of the request.")
    request_id = serializers.CharField(
        required=False, help_text="Identifies the request in the portal's log. Give it to an operator."
    )
    reason = ReasonSerializer(required=False, help_text="More specific reason than `code`, if there is one.")
    errors = serializers.DictField(  # type: ignore[assignment]
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text=(
            "With 400 and 409: errors by field. Nested fields have a dot (`git.url`), fields in lists "
            "also the index (`rules.0.claim`). The empty name is the body itself."
        ),
    )
    reasons = NodeReasonsField(required=False, help_text="With `impossible`: the reason for each node.")
    blocker = BlockerField(required=False, help_text="With `needs_approval`: the blocking rule.")
    ask = AskField(
        required=False,
        allow_null=True,
        help_text=(
            "With `needs_approval`: body for `POST quota-requests`; null if a request would not help."
        ),
    )
    state = serializers.CharField(
        required=False, help_text="With `conflict` and `precondition_failed`: the current state."
    )
    changed_by = serializers.CharField(
        required=False, help_text="With `changed_meanwhile`: display name of the last editor."
    )
    count = serializers.IntegerField(
        required=False, help_text="With `in_use`: number of users of the resource."
    )
    run = serializers.UUIDField(
        required=False, help_text="With `check_under_way`: id of the GPU check in progress."
    )
    quota_request = serializers.UUIDField(
        required=False, help_text="With `asked_already` and `decided_already`: id of the quota request."
    )
    join_request = serializers.UUIDField(
        required=False, help_text="With `decided_already`: id of the request to join."
    )
    state_of_request = serializers.CharField(
        required=False, help_text="With `decided_already`: state of the request."
    )
    url = serializers.CharField(
        required=False, help_text="With `asked_already`: page of the request in the portal."
    )
    again_at = serializers.DateTimeField(
        required=False, help_text="With `ask_to_join_later`: earliest time for a new request."
    )
    next_start = serializers.DateTimeField(
        required=False,
        allow_null=True,
        help_text="For a reservation that does not fit: next start at which it would; null if unknown.",
    )
