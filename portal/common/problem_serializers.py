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
    """A `ProblemCode`, or the code of the reason for refusals without a kind of their own."""


def schemas() -> dict[str, Any]:
    """Return definitions for the OpenAPI document by name."""
    reason_codes = sorted(code.value for enumeration in registry.enumerations for code in enumeration)
    return {
        "ReasonCode": {
            "type": "string",
            "enum": reason_codes,
            "description": "Why something is refused, waits or is as it is. Others may come.",
        },
        "ProblemCode": {
            "description": (
                "What kind of error it is: one of these, or the code of its reason. Stable once released; "
                "others may come, which are to be treated as their status."
            ),
            "anyOf": [
                {"type": "string", "enum": [code.value for code in ProblemCode]},
                {"$ref": "#/components/schemas/ReasonCode"},
            ],
        },
    }


class ReasonSerializer(serializers.Serializer[Any]):
    """Machine-readable reason: compare `code`, read `params`."""

    code = ReasonCodeField(help_text="Why, as a code to decide by.")
    params = serializers.DictField(help_text="Names, and amounts in base units.")


@extend_schema_field({"type": "array", "items": {"$ref": "#/components/schemas/NodeReason"}})
class NodeReasonsField(serializers.ListField):
    """Reasons by node, as in verdicts (`portal.scheduling.serializers`)."""


@extend_schema_field({"$ref": "#/components/schemas/Blocker"})
class BlockerField(serializers.DictField):
    """The blocking rule, as in verdicts."""


@extend_schema_field({"$ref": "#/components/schemas/Ask"})
class AskField(serializers.DictField):
    """The request to make for approval, as in verdicts."""


class ProblemSerializer(serializers.Serializer[Any]):
    """A problem (RFC 9457).

    Members may be added: ignore unknown ones, and handle an unknown `code` by `status`.
    """

    type = serializers.CharField(help_text="`urn:berth:problem:` and the code.")
    title = serializers.CharField(help_text="What kind of error it is, in a few words.")
    status = serializers.IntegerField(
        min_value=400, max_value=599, help_text="The status of the answer, again."
    )
    code = ProblemCodeField(help_text="What kind of error it is, for programs.")
    detail = serializers.CharField(help_text="A sentence for people.")
    next_action = serializers.CharField(required=False, help_text="What to do about it, in a sentence.")
    instance = serializers.CharField(required=False, help_text="The path that was asked.")
    request_id = serializers.CharField(
        required=False, help_text="Identifies the request in the portal's log. Give it to an operator."
    )
    reason = ReasonSerializer(required=False, help_text="Finer than `code`, where there is more to know.")
    errors = serializers.DictField(  # type: ignore[assignment]
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text=(
            "With 400 and 409: what is wrong with single fields. A field in another one is named with a dot "
            "(`git.url`), one of an object in a list with its place (`rules.0.claim`); the empty name is the "
            "body itself."
        ),
    )
    reasons = NodeReasonsField(required=False, help_text="With `impossible`: why, for each node.")
    blocker = BlockerField(required=False, help_text="With `needs_approval`: the rule in the way.")
    ask = AskField(
        required=False,
        allow_null=True,
        help_text="With `needs_approval`: what to ask for; null where asking does not help.",
    )
    state = serializers.CharField(
        required=False, help_text="With `conflict` and `precondition_failed`: the present state."
    )
    changed_by = serializers.CharField(
        required=False, help_text="With `changed_meanwhile`: who changed it since, as people know them."
    )
    count = serializers.IntegerField(required=False, help_text="With `in_use`: by how many.")
    run = serializers.UUIDField(
        required=False, help_text="With `check_under_way`: the GPU check that is under way."
    )
    quota_request = serializers.UUIDField(
        required=False, help_text="With `asked_already` and `decided_already`: the request for more."
    )
    join_request = serializers.UUIDField(
        required=False, help_text="With `decided_already`: the request to join."
    )
    state_of_request = serializers.CharField(
        required=False, help_text="With `decided_already`: what became of the request."
    )
    url = serializers.CharField(required=False, help_text="With `asked_already`: the page of that request.")
    again_at = serializers.DateTimeField(
        required=False, help_text="With `ask_to_join_later`: when one may ask again."
    )
    next_start = serializers.DateTimeField(
        required=False,
        allow_null=True,
        help_text="With a reservation that does not fit: when it would; null where that is not known.",
    )
