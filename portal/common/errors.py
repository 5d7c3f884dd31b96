"""Errors raised by services. The API renders them as problem documents, pages as messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of, sentence_of


class PortalError(Exception):
    """Base of service errors.

    `code` is a `ProblemCode` or the code of the reason. The text of `reason` is rendered only at the edge.
    `extra` has additional members of the problem document; `extra["errors"]` maps fields to reasons or to a
    validator's messages, see `field_errors`.
    """

    code: StrEnum = ProblemCode.ERROR
    status = 500
    title = "Something went wrong"

    def __init__(self, reason: Reason, *, code: StrEnum | None = None, **extra: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.extra = extra
        if code is not None:
            self.code = code

    @property
    def message(self) -> str:
        """The cause, as one sentence."""
        return message_of(self.reason)

    @property
    def next_action(self) -> str:
        """The suggested next action, or ""."""
        return next_action_of(self.reason)

    def __str__(self) -> str:
        return self.message

    @property
    def field_errors(self) -> dict[str, list[str]]:
        """Error messages by field, for a form or a problem document."""
        errors: Mapping[str, Iterable[Reason | str]] = self.extra.get("errors", {})
        return {
            field: [message_of(item) if isinstance(item, Reason) else str(item) for item in items]
            for field, items in errors.items()
        }

    @property
    def sentence(self) -> str:
        """Message and next action as one text, for a page."""
        return sentence_of(self.reason)


class InvalidInput(PortalError):
    """The request is malformed or violates a rule. `extra["errors"]` maps fields to reasons."""

    code = ProblemCode.INVALID
    status = 400
    title = "The request is not valid"


class TooMany(PortalError):
    """A rate limit is exceeded. Retry after `retry_after_s` seconds."""

    code = ProblemCode.TOO_MANY
    status = 429
    title = "Too many requests"

    def __init__(self, reason: Reason, *, retry_after_s: int, **extra: Any) -> None:
        super().__init__(reason, **extra)
        self.retry_after_s = retry_after_s


class NotAllowed(PortalError):
    """The actor may see the object but not perform this operation on it."""

    code = ProblemCode.NOT_ALLOWED
    status = 403
    title = "Permission denied"


class NotFound(PortalError):
    """The object does not exist or is not visible to the actor."""

    code = ProblemCode.NOT_FOUND
    status = 404
    title = "Not found"


class StateConflict(PortalError):
    """The state of the object does not permit the operation, or a concurrent change won."""

    code = ProblemCode.CONFLICT
    status = 409
    title = "Not possible in the current state"


class PreconditionFailed(PortalError):
    """The client's `If-Match` does not match the current version."""

    code = ProblemCode.PRECONDITION_FAILED
    status = 412
    title = "Changed since it was read"


class NotPossible(PortalError):
    """No pool can ever run the request."""

    code = ProblemCode.IMPOSSIBLE
    status = 422
    title = "No pool can run this"


class NeedsApproval(PortalError):
    """Possible, but above the team's limits. `extra["ask"]` is the quota request to create."""

    code = ProblemCode.NEEDS_APPROVAL
    status = 409
    title = "Needs approval"


class Unavailable(PortalError):
    """A dependency is temporarily unavailable. Retry after `retry_after_s` seconds."""

    retry_after_s = 10
    code = ProblemCode.UNAVAILABLE
    status = 503
    title = "Temporarily unavailable"
