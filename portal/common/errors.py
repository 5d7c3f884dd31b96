"""Errors that services raise. The API turns them into problem details, the UI into messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of, sentence_of


class PortalError(Exception):
    """Base: a stable `code`, a `ProblemCode` or the reason's, an HTTP status, and the reason, whose text is
    made at the edge.

    `extra` holds members that the API's problem document carries beside the standard ones; its `errors`
    map fields to reasons (or to a validator's own sentences), see `field_errors`.
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
        """What went wrong, in a sentence."""
        return message_of(self.reason)

    @property
    def next_action(self) -> str:
        """The one thing to do about it, or an empty string."""
        return next_action_of(self.reason)

    def __str__(self) -> str:
        return self.message

    @property
    def field_errors(self) -> dict[str, list[str]]:
        """What is wrong with single fields, in sentences, for a form or a problem document."""
        errors: Mapping[str, Iterable[Reason | str]] = self.extra.get("errors", {})
        return {
            field: [message_of(each) if isinstance(each, Reason) else str(each) for each in found]
            for field, found in errors.items()
        }

    @property
    def sentence(self) -> str:
        """What went wrong and what to do about it, for a message on a page."""
        return sentence_of(self.reason)


class InvalidInput(PortalError):
    """The request cannot be understood or breaks a rule; `extra["errors"]` maps fields to reasons."""

    code = ProblemCode.INVALID
    status = 400
    title = "The request is not valid"


class TooMany(PortalError):
    """More of it than one may do in this time; `retry_after_s` says when it may be tried again."""

    code = ProblemCode.TOO_MANY
    status = 429
    title = "Too many requests"

    def __init__(self, reason: Reason, *, retry_after_s: int, **extra: Any) -> None:
        super().__init__(reason, **extra)
        self.retry_after_s = retry_after_s


class NotAllowed(PortalError):
    """The actor may see the thing but not do this with it."""

    code = ProblemCode.NOT_ALLOWED
    status = 403
    title = "You may not do this"


class NotFound(PortalError):
    """It does not exist, or the actor may not know that it does."""

    code = ProblemCode.NOT_FOUND
    status = 404
    title = "Not found"


class StateConflict(PortalError):
    """The thing is in a state in which this cannot be done, or somebody else was faster."""

    code = ProblemCode.CONFLICT
    status = 409
    title = "Not possible in the present state"


class PreconditionFailed(PortalError):
    """The client's `If-Match` names another version than the present one."""

    code = ProblemCode.PRECONDITION_FAILED
    status = 412
    title = "Changed meanwhile"


class NotPossible(PortalError):
    """No pool can ever run this as it was asked for."""

    code = ProblemCode.IMPOSSIBLE
    status = 422
    title = "No pool can run this"


class NeedsApproval(PortalError):
    """It is possible, but not within what the team may hold; `extra["ask"]` says what to ask for."""

    code = ProblemCode.NEEDS_APPROVAL
    status = 409
    title = "Needs approval"


class Unavailable(PortalError):
    """A part of the system does not answer at present; most come back within `retry_after_s`."""

    retry_after_s = 10
    code = ProblemCode.UNAVAILABLE
    status = 503
    title = "Temporarily unavailable"
