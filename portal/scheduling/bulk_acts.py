"""Bulk actions on workspaces, and their previews, with the services for single workspaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from django.db import models
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.common.errors import PortalError
from portal.common.formatting import format_day_time
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.scheduling import operator_moves
from portal.workspaces import bulk, extending, owner_messages, policies, services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.preconditions import STOPS_ALREADY, require_not_stopping, require_stoppable


class Act(models.TextChoices):
    """A bulk action."""

    STOP = "stop", gettext_lazy("Stop")
    EXTEND = "extend", gettext_lazy("Extend")
    MESSAGE = "message", gettext_lazy("Message")
    MOVE = "move", gettext_lazy("Move")
    CANCEL_MOVE = "cancel_move", gettext_lazy("Cancel move")


OPERATOR_ACTS = frozenset({Act.MOVE, Act.CANCEL_MOVE})


@dataclass(frozen=True, slots=True)
class Terms:
    """The arguments of an action, besides the workspaces.

    - `seconds`: of an extension.
    - `text`: of a message, or the reason of a move for the owners.
    - `node`: target of a move; empty for any other node of the pool.
    """

    seconds: int = extending.OFFERED_S
    text: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """A workspace with the expected `outcome` of the action, or the reason for its `refusal`."""

    workspace: Workspace
    outcome: str
    refusal: PortalError | None = None

    @property
    def choice(self) -> str:
        """The form value of the workspace: its id and the fingerprint that the user saw."""
        return f"{self.workspace.pk}.{bulk.fingerprint(self.workspace)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Preview of a bulk action.

    `hidden`: number of selected workspaces that do not exist or that the actor may not see.
    """

    done: Sequence[Planned]
    refused: Sequence[Planned]
    hidden: int

    @property
    def owners(self) -> list[str]:
        """The owners of the affected workspaces, by name."""
        return sorted({planned.workspace.owner.username for planned in self.done})


@dataclass(frozen=True, slots=True)
class ResultLine:
    """The result for one workspace. `workspace` is None if the user may not see it."""

    workspace: Workspace | None
    text: str
    ok: bool


def plan(actor: User, act: Act, workspaces: Iterable[UUID], terms: Terms) -> Plan:
    """Return the expected effect on each workspace, using the checks of the services. Changes nothing.

    Raises `NotAllowed` for `OPERATOR_ACTS` by other users.
    """
    require_act(actor, act)
    ids = list(dict.fromkeys(workspaces))
    rows = bulk.visible(actor, ids)
    ordered = [rows[key] for key in ids if key in rows]
    if act == Act.MOVE:
        planned = _planned_moves(actor, ordered, terms.node)
    else:
        planned = [_planned(actor, act, row, terms) for row in ordered]
    return Plan(
        done=[step for step in planned if step.refusal is None],
        refused=[step for step in planned if step.refusal is not None],
        hidden=len(ids) - len(planned),
    )


def require_act(actor: User, act: Act) -> None:
    """Raise `NotAllowed` if the action is for operators only."""
    if act in OPERATOR_ACTS:
        require_operator(actor)


def _planned_moves(actor: User, rows: Sequence[Workspace], node: str) -> list[Planned]:
    moves = operator_moves.preview(actor=actor, workspaces=rows, node=node)
    stops_at = format_day_time(moves.stops_at)
    planned = []
    for row in rows:
        verdict = moves.verdicts[row.pk]
        if isinstance(verdict, PortalError):
            planned.append(Planned(row, "", verdict))
            continue
        params = {"node": verdict.target.nodes[0].node, "time": stops_at}
        planned.append(Planned(row, _("Stops at %(time)s, then starts on %(node)s") % params))
    return planned


def _planned(actor: User, act: Act, workspace: Workspace, terms: Terms) -> Planned:
    try:
        return Planned(workspace, _outcome(actor, act, workspace, terms))
    except PortalError as error:
        return Planned(workspace, "", error)


def _outcome(actor: User, act: Act, workspace: Workspace, terms: Terms) -> str:
    """Return the outcome as text. Raises the errors of the service."""
    match act:
        case Act.EXTEND:
            policies.require_operate(actor, workspace)
            extending.require_extendable(workspace, terms.seconds)
            until = format_day_time(extending.end_after(workspace, terms.seconds))
            return _("Runs until %(time)s") % {"time": until}
        case Act.MESSAGE:
            owner_messages.require_reachable(actor, workspace)
            return _("%(owner)s gets the message") % {"owner": workspace.owner.username}
        case Act.CANCEL_MOVE:
            operator_moves.require_pending(workspace)
            return _("Stays where it is")
        case _:
            require_stoppable(actor, workspace)
            require_not_stopping(workspace)
            return _stop_text(workspace)


def _stop_text(workspace: Workspace) -> str:
    if workspace.state in STOPS_ALREADY:
        # The workspace was preempted and would be queued again.
        return _("No longer starts automatically")
    return _("Leaves the queue") if workspace.state == State.PENDING else _("Stops. Files are kept.")


def perform(
    actor: User, act: Act, seen: Mapping[UUID, str], terms: Terms, *, form_id: str
) -> list[ResultLine]:
    """Act on each workspace that is unchanged since `seen`, and return a line for each.

    `form_id` identifies the form, so that a repeated submission has no effect. Raises `InvalidInput` and
    `TooMany` if a message cannot be sent to anyone, and `NotAllowed` for `OPERATOR_ACTS` by other users.
    """
    require_act(actor, act)
    key, done = _key(form_id), ""
    match act:
        case Act.MESSAGE:
            sent = owner_messages.send(actor=actor, workspaces=seen, text=terms.text, idempotency_key=key)
            done = _("Already sent") if sent.replayed else _("Message sent")
            return _lines(actor, sent.results, done)
        case Act.MOVE:
            results = operator_moves.request(
                actor=actor,
                workspaces=seen,
                node=terms.node,
                reason=terms.text,
                idempotency_key=key,
                seen=seen,
            )
            return _lines(actor, results, _("Owner notified, moves after the notice"))
        case Act.CANCEL_MOVE:
            single: Callable[..., object] = partial(operator_moves.cancel, actor=actor)
            done = _("Stays where it is")
        case Act.STOP:
            single = partial(services.stop, actor=actor)
        case Act.EXTEND:
            single = partial(extending.extend, actor=actor, seconds=terms.seconds, idempotency_key=key)
    results = bulk.act_on_each(
        actor=actor, workspaces=seen, act=lambda workspace: single(workspace_id=workspace), seen=seen
    )
    return _lines(actor, results, done)


def _key(form_id: str) -> str:
    """Return the idempotency key of a form, which differs from the keys of API clients."""
    return f"form:{form_id}"


def _lines(actor: User, results: Mapping[UUID, PortalError | None], done: str) -> list[ResultLine]:
    rows = bulk.visible(actor, results)
    lines = []
    for key, error in results.items():
        row = rows.get(key)
        text = (
            error.sentence
            if error is not None
            else done or (_done_text(row) if row is not None else _("Done"))
        )
        lines.append(ResultLine(row, text, error is None))
    return lines


def _done_text(workspace: Workspace) -> str:
    """Return the result of a stop or an extension as text, from the changed workspace."""
    if workspace.runs_until is not None:
        return _("Runs until %(time)s") % {"time": format_day_time(workspace.runs_until)}
    return str(State(workspace.state).label)
