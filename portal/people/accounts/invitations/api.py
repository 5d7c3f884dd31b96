"""REST API for inviting many people to a team."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, StrictSerializer, UserRequest, body_of, operation, routes
from portal.common.problem_serializers import ProblemSerializer
from portal.common.problems import document_of
from portal.common.scopes import Scope
from portal.people.accounts import policies, selectors
from portal.people.accounts.invitations import services
from portal.people.accounts.invitations.lines import MAX_CELL, MAX_PEOPLE, InvitationLine
from portal.people.accounts.invitations.services import LineResult, Outcome
from portal.people.accounts.models import ApiToken, Role

NO_STORE = {"Cache-Control": "no-store"}
STATUS = {Outcome.INVITED: 201, Outcome.ADDED: 200, Outcome.ALREADY_MEMBER: 200}


class InvitedPersonSerializer(StrictSerializer):
    """A person to invite."""

    who = serializers.CharField(
        max_length=MAX_CELL, help_text="Username or e-mail address. Only an address can get a new account."
    )
    role = serializers.CharField(
        max_length=40, required=False, help_text="Role in the team: viewer, member or owner."
    )

    examples = {"who": "gina@example.org", "role": "member"}


class InvitationsSerializer(StrictSerializer):
    """People to invite to a team."""

    people = serializers.ListField(
        child=InvitedPersonSerializer(),
        min_length=1,
        max_length=MAX_PEOPLE,
        help_text="The people, in the order of the results.",
    )
    role = serializers.ChoiceField(
        Role.choices, default=Role.MEMBER, help_text="Role of people for whom no role is given."
    )
    preview = serializers.BooleanField(
        default=False, help_text="Whether to return the results without changing anything."
    )

    examples = {"people": [{"who": "gina@example.org", "role": "owner"}, {"who": "hal"}], "role": "member"}


class InvitationResultSerializer(serializers.Serializer[Any]):
    """The result for one person."""

    who = serializers.CharField(help_text="Username or e-mail address, as in the request.")
    result = serializers.ChoiceField(
        Outcome.choices, help_text="Result for this person, or the expected result of a preview."
    )
    status = serializers.IntegerField(
        help_text="HTTP status that a single request would get, such as 201 or 403."
    )
    username = serializers.CharField(help_text="Username of the account; empty if refused.")
    role = serializers.CharField(help_text="Role in the team. Members keep their role.")
    mailed = serializers.BooleanField(help_text="Whether a link was sent by e-mail.")
    invite_url = serializers.URLField(
        allow_null=True,
        help_text="Link for a new user to set a password, for administrators. Shown only once.",
    )
    problem = ProblemSerializer(allow_null=True, help_text="Why the person was refused; null otherwise.")


class InvitationResultsSerializer(serializers.Serializer[Any]):
    """A result for each person, in the order of the request."""

    results = InvitationResultSerializer(many=True, help_text="Results, one for each person.")


class Invitations(ApiView):
    """Invitations to a team."""

    tag = "teams"
    operation_ids = {"post": "inviteTeamMembers"}
    scopes = {"*": Scope.TEAMS_WRITE}

    @operation(
        "Invite many people to a team",
        idempotent=True,
        description=(
            f"For owners of the team and operators. Takes up to {MAX_PEOPLE} people. People with an account "
            "are added. New e-mail addresses get an account and a link: by administrators, and by others "
            "for domains in `BERTH_OWNER_INVITATION_DOMAINS`, where the link is only mailed. Tokens need "
            "`users:write` for that. A refused person does not affect the others, so the response is 200; "
            "each result has the status that a single request would get."
        ),
        request=InvitationsSerializer,
        responses={200: InvitationResultsSerializer},
        errors=[400, 404, 409, 415],
    )
    def post(self, request: UserRequest, slug: str) -> Response:
        team = selectors.team_by_slug(request.user, slug)
        policies.require_manage_team(request.user, team)
        body = body_of(request, InvitationsSerializer)
        people = [
            InvitationLine(number, person["who"].strip(), person.get("role", ""))
            for number, person in enumerate(body["people"], start=1)
        ]
        act = services.plan if body["preview"] else services.invite
        results = act(
            actor=request.user,
            team=team,
            people=people,
            default_role=body["role"],
            may_create=_may_create(request),
        )
        return Response({"results": [_result(request, result) for result in results]}, headers=NO_STORE)


def _may_create(request: UserRequest) -> bool:
    """Return whether the token permits new accounts. Sessions do."""
    token = request.auth
    return not isinstance(token, ApiToken) or bool({Scope.ALL, Scope.USERS_WRITE} & set(token.scopes))


def _result(request: UserRequest, result: LineResult) -> dict[str, Any]:
    problem = document_of(result.error, request) if result.error is not None else None
    return {
        "who": result.line.who,
        "result": result.outcome.value,
        "status": problem["status"] if problem else STATUS[result.outcome],
        "username": result.username,
        "role": result.role,
        "mailed": result.mailed,
        "invite_url": result.link.url if result.link is not None else None,
        "problem": problem,
    }


urlpatterns = routes("teams/<slug:slug>/invitations", Invitations, "team-invitations")
