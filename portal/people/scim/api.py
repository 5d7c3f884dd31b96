"""SCIM endpoints (RFC 7644) at /scim/v2/."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import IntegrityError, transaction
from django.db.models import Prefetch, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path, re_path
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions, negotiation, parsers, permissions, renderers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView, set_rollback

from portal.common.actors import SystemActor
from portal.common.constraints import violates
from portal.common.errors import PortalError, StateConflict
from portal.common.json_input import InvalidJson, parse_json
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.people.accounts.authentication import TokenAuthentication
from portal.people.accounts.models import ApiToken, User
from portal.people.scim import errors, filters, patch, queries, resources, schemas, services
from portal.people.scim.codes import ScimCode
from portal.people.scim.models import ScimGroup, ScimUser
from portal.people.scim.schemas import MAX_PAGE

log = logging.getLogger(__name__)
CONTENT_TYPE = "application/scim+json"
MAX_BODY = 2 * 1024 * 1024
MAX_START = 10_000_000
SEARCHED: dict[str, type] = {
    "filter": str,
    "startIndex": int,
    "count": int,
    "attributes": list,
    "excludedAttributes": list,
}
"""Parameters of a search, with their types in its body (RFC 7644, section 3.4.3)."""


class ScimRenderer(renderers.JSONRenderer):
    media_type = CONTENT_TYPE
    format = "scim"


class ScimParser(parsers.BaseParser):
    """Parses JSON objects of up to `MAX_BODY` bytes."""

    media_type = CONTENT_TYPE

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> dict[str, Any]:
        raw = stream.read(MAX_BODY + 1)
        if len(raw) > MAX_BODY:
            raise errors.too_large(Reason(ScimCode.TOO_LARGE))
        try:
            # NUL characters are stripped later, from texts that are stored.
            document = parse_json(raw, strict=False)
        except InvalidJson:
            document = None
        if not isinstance(document, dict):
            raise errors.invalid_syntax(Reason(ScimCode.BODY_NOT_JSON))
        return document


class PlainJsonParser(ScimParser):
    """Parses `application/json` like `ScimParser`. RFC 7644 requires servers to accept it."""

    media_type = "application/json"


class ScimNegotiation(negotiation.DefaultContentNegotiation):
    """Always selects the SCIM renderer, whatever the client accepts."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> tuple[Any, str]:
        return renderers[0], CONTENT_TYPE


class IsProvisioner(permissions.BasePermission):
    """Requires a token with scope `scim` whose owner is currently an administrator."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        token: Any = request.auth
        if not isinstance(token, ApiToken):
            return False
        if Scope.SCIM not in token.scopes:
            raise exceptions.PermissionDenied(_("The token lacks the scope “%(scope)s”.") % {"scope": "scim"})
        if not token.owner.administers:
            raise exceptions.PermissionDenied(_("The user of this token is no longer an administrator."))
        return True


def _is_taken(error: IntegrityError) -> bool:
    """Return whether a concurrent request has taken the same name or address."""
    return (
        violates(error, User, "username", "user_email_unique")
        or violates(error, ScimUser, "user")
        or violates(error, ScimUser, "user_name")
        or violates(error, ScimGroup, "scim_group_name_unique")
    )


class ScimView(APIView):
    """Base of SCIM endpoints. Errors follow RFC 7644, section 3.12."""

    schema = None  # Not in the OpenAPI document: SCIM has a Schemas endpoint.
    authentication_classes = (TokenAuthentication,)
    permission_classes = (IsProvisioner,)
    renderer_classes = (ScimRenderer,)
    parser_classes = (ScimParser, PlainJsonParser)
    content_negotiation_class = ScimNegotiation

    @property
    def actor(self) -> SystemActor:
        """The provider, named after the owner of its token."""
        return SystemActor(f"SCIM for {self.request.user.get_username()}")

    def handle_exception(self, exc: Exception) -> Response:
        set_rollback()
        headers = {}
        scim_type = ""
        match exc:
            case errors.ScimRefusal():
                status, scim_type, detail = exc.status, exc.scim_type, exc.sentence
            case PortalError():
                status, detail = exc.status, _full_message(exc)
                scim_type = "" if isinstance(exc, StateConflict) or status != 400 else "invalidValue"
            case IntegrityError() if _is_taken(exc):
                refusal = errors.uniqueness(Reason(ScimCode.NOT_UNIQUE))
                status, scim_type, detail = 409, refusal.scim_type, refusal.sentence
            case Http404():
                refusal = errors.no_such_resource()
                status, detail = 404, refusal.sentence
            case exceptions.APIException():
                status, detail = exc.status_code, str(exc.detail)
                if isinstance(exc, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
                    status, headers = 401, {"WWW-Authenticate": self.get_authenticate_header(self.request)}
                if wait := getattr(exc, "wait", None):
                    headers["Retry-After"] = str(int(wait))
            case SuspiciousOperation():
                status, detail = 400, str(exc)
            case _:
                got_request_exception.send(sender=type(self), request=self.request._request)
                log.error("%s %s failed", self.request.method, self.request.path, exc_info=exc)
                status, detail = 500, _("Internal error in the portal.")
        response = Response(_error(status, detail, scim_type), status=status, headers=headers)
        response.exception = True
        return response


def _full_message(error: PortalError) -> str:
    """Return the error's message, followed by the messages of its fields."""
    sentences = [sentence for items in error.field_errors.values() for sentence in items]
    return " ".join(dict.fromkeys([error.sentence, *sentences]))


def _error(status: int, detail: str, scim_type: str = "") -> dict[str, Any]:
    body = {"schemas": [resources.ERROR], "status": str(status), "detail": detail}
    return {**body, "scimType": scim_type} if scim_type else body


class StaticDocument(ScimView):
    """Endpoint of static documents about the service."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if "filter" in request.query_params:
            raise errors.forbidden(Reason(ScimCode.FILTER_NOT_HERE))


class ServiceProviderConfig(StaticDocument):
    def get(self, request: Request) -> Response:
        return Response(schemas.service_provider_config())


class DocumentList(StaticDocument):
    """Endpoint that lists documents and returns one by its identifier."""

    described: ClassVar[Callable[[], list[dict[str, Any]]]]

    def get(self, request: Request, name: str = "") -> Response:
        every = type(self).described()
        if not name:
            return Response(_list_document(every, len(every), 1))
        match = next((resource for resource in every if resource["id"].lower() == name.lower()), None)
        if match is None:
            raise errors.no_such_resource()
        return Response(match)


class ResourceTypes(DocumentList):
    described = staticmethod(schemas.resource_types)


class Schemas(DocumentList):
    described = staticmethod(schemas.schemas)


class Resources(ScimView, ABC):
    """Endpoints of one resource type: its list, and each resource by identifier."""

    shape: ClassVar[patch.ResourceAttributes]
    attributes: ClassVar[queries.Attributes]

    @abstractmethod
    def rows(self) -> QuerySet[Any]:
        """Return all resources visible to SCIM, with the relations that a response needs."""

    @abstractmethod
    def represent(self, row: Any) -> dict[str, Any]: ...

    @abstractmethod
    def locked(self, key: UUID) -> tuple[Any, dict[str, Any]]:
        """Return the locked row and the document of its writable attributes. Raises `ScimRefusal` (404)."""

    @abstractmethod
    def created(self, document: Mapping[str, Any]) -> Any: ...

    @abstractmethod
    def updated(self, row: Any, document: Mapping[str, Any]) -> Any: ...

    @abstractmethod
    def removed(self, row: Any) -> None: ...

    def list_parameters(self) -> Mapping[str, str]:
        """Return the list parameters: `filter`, `startIndex`, `count`, `attributes`, `excludedAttributes`."""
        return self.request.query_params

    def names(self, parameter: str) -> frozenset[str]:
        return resources.names_of(self.list_parameters().get(parameter, ""))

    def projected(self, document: Mapping[str, Any]) -> dict[str, Any]:
        included, excluded = self.names("attributes"), self.names("excludedAttributes")
        return resources.select_attributes(document, included, excluded)

    def answer(self, key: UUID, *, status: int = 200) -> Response:
        row = self.rows().filter(pk=key).first()
        if row is None:
            raise errors.no_such_resource()
        document = self.represent(row)
        meta = document["meta"]
        headers = {"ETag": meta["version"], "Location": meta["location"]}
        if self.request.method == "GET" and meta["version"] in _versions(self.request, "If-None-Match"):
            return Response(status=304, headers={"ETag": meta["version"]})
        return Response(self.projected(document), status=status, headers=headers)

    def get(self, request: Request, scim_id: UUID | None = None) -> Response:
        return self.answer(scim_id) if scim_id is not None else self.page()

    def page(self) -> Response:
        return _page(self.list_parameters(), [(self, self.matches(self.list_parameters()))])

    def matches(self, params: Mapping[str, str]) -> QuerySet[Any]:
        """Return the rows that match `filter`. Raises `ScimRefusal` (invalidFilter)."""
        if filter_text := params.get("filter"):
            return self.rows().filter(queries.condition_of(filters.parse(filter_text), self.attributes))
        return self.rows()

    def post(self, request: Request, scim_id: UUID | None = None) -> Response:
        if scim_id is not None:
            raise exceptions.MethodNotAllowed("POST")
        document = _document(request, self.shape.urn)
        with transaction.atomic():
            row = self.created(document)
        return self.answer(row.pk, status=201)

    def put(self, request: Request, scim_id: UUID | None = None) -> Response:
        document = _document(request, self.shape.urn)
        return self._update(scim_id, lambda _present: document)

    def patch(self, request: Request, scim_id: UUID | None = None) -> Response:
        body = _document(request, resources.PATCH)
        operations = next((value for key, value in body.items() if key.lower() == "operations"), None)
        return self._update(scim_id, lambda present: patch.apply_patch(present, operations, self.shape))

    def delete(self, request: Request, scim_id: UUID | None = None) -> Response:
        with transaction.atomic():
            self.removed(self._locked_match(scim_id)[0])
        return Response(status=204)

    def _update(
        self, key: UUID | None, new_values: Callable[[dict[str, Any]], Mapping[str, Any]]
    ) -> Response:
        with transaction.atomic():
            row, present = self._locked_match(key)
            self.updated(row, new_values(present))
        return self.answer(row.pk)

    def _locked_match(self, key: UUID | None) -> tuple[Any, dict[str, Any]]:
        """Return the locked row and its document if its version meets `If-Match`. Raises `ScimRefusal`."""
        if key is None:
            raise exceptions.MethodNotAllowed(str(self.request.method))
        row, document = self.locked(key)
        versions = _versions(self.request, "If-Match")
        if versions and "*" not in versions and self.represent(row)["meta"]["version"] not in versions:
            raise errors.changed_meanwhile(Reason(ScimCode.VERSION_CHANGED))
        return row, document


class Users(Resources):
    shape = resources.USER_SHAPE
    attributes = queries.USERS

    def rows(self) -> QuerySet[ScimUser]:
        rows = ScimUser.objects.filter(removed_at=None, user__deleted_at=None).select_related("user")
        return rows.prefetch_related("groups").order_by("user__username")

    def represent(self, row: ScimUser) -> dict[str, Any]:
        return resources.user_resource(row)

    def locked(self, key: UUID) -> tuple[ScimUser, dict[str, Any]]:
        row = services.present_user(key, leaving=self.request.method == "DELETE")
        return row, resources.user_document(row)

    def created(self, document: Mapping[str, Any]) -> ScimUser:
        return services.create_user(actor=self.actor, values=resources.user_values(document))

    def updated(self, row: ScimUser, document: Mapping[str, Any]) -> ScimUser:
        return services.update_user(actor=self.actor, row=row, values=resources.user_values(document))

    def removed(self, row: ScimUser) -> None:
        services.remove_user(actor=self.actor, row=row)


class Groups(Resources):
    shape = resources.GROUP_SHAPE
    attributes = queries.GROUPS

    @property
    def includes_members(self) -> bool:
        included = self.names("attributes")
        if included:
            return any(name.partition(".")[0] == "members" for name in included)
        return "members" not in self.names("excludedAttributes")

    def rows(self) -> QuerySet[ScimGroup]:
        rows = ScimGroup.objects.order_by("display_name", "pk")
        if not self.includes_members:
            return rows
        members = ScimUser.objects.filter(removed_at=None, user__deleted_at=None)
        return rows.prefetch_related(Prefetch("members", members.order_by("user__username")))

    def represent(self, row: ScimGroup) -> dict[str, Any]:
        return resources.group_resource(row, members=self.includes_members)

    def locked(self, key: UUID) -> tuple[ScimGroup, dict[str, Any]]:
        row = services.present_group(key)
        present = row.members.filter(removed_at=None, user__deleted_at=None).order_by("pk")
        return row, resources.group_document(row, present.values_list("pk", flat=True))

    def created(self, document: Mapping[str, Any]) -> ScimGroup:
        return services.create_group(actor=self.actor, values=resources.group_values(document))

    def updated(self, row: ScimGroup, document: Mapping[str, Any]) -> ScimGroup:
        return services.update_group(actor=self.actor, group=row, values=resources.group_values(document))

    def removed(self, row: ScimGroup) -> None:
        services.remove_group(actor=self.actor, group=row)


class ResourceSearch(Resources):
    """Search by POST, so that filters do not appear in access logs."""

    http_method_names = ["post"]

    def list_parameters(self) -> Mapping[str, str]:
        body = _document(self.request, resources.SEARCH)
        values = {key.lower(): value for key, value in body.items()}
        texts = {
            name: _search_text(values[name.lower()], name) for name in SEARCHED if name.lower() in values
        }
        return {name: text for name, text in texts.items() if text}

    def post(self, request: Request, scim_id: UUID | None = None) -> Response:
        return self.page()


class UserSearch(ResourceSearch, Users):
    """POST /Users/.search"""


class GroupSearch(ResourceSearch, Groups):
    """POST /Groups/.search"""


class SearchAll(ScimView):
    """POST /.search: users, then groups. A type without an attribute of the filter has no matches."""

    def post(self, request: Request) -> Response:
        views: tuple[Resources, ...] = (UserSearch(request=request), GroupSearch(request=request))
        params = views[0].list_parameters()
        matches: list[tuple[Resources, QuerySet[Any]]] = []
        for view in views:
            try:
                matches.append((view, view.matches(params)))
            except errors.ScimRefusal as refusal:
                if refusal.code != ScimCode.FILTER_NOT_SUPPORTED:
                    raise
                unsupported = refusal
        if not matches:
            raise unsupported
        return _page(params, matches)


def _search_text(value: Any, name: str) -> str:
    """Convert a search parameter to its form in a query. Raises `ScimRefusal` (invalidValue)."""
    kind: type = SEARCHED[name]
    if value is None:
        return ""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise errors.invalid_value(name)
    if isinstance(value, list):
        if not all(isinstance(item, str) for item in value):
            raise errors.invalid_value(name)
        return ",".join(value)
    return str(value)


class NotSupported(ScimView):
    """Optional endpoints of the RFC that are not implemented. Responds with 501, as required."""

    def get(self, request: Request) -> Response:
        raise errors.not_implemented(Reason(ScimCode.NOT_SUPPORTED))

    post = get


def _document(request: Request, schema: str) -> dict[str, Any]:
    """Return the body, whose `schemas` must include `schema`. Raises `ScimRefusal` (invalidSyntax)."""
    body: Any = request.data
    schemas = body.get("schemas")
    if not isinstance(schemas, list) or schema.lower() not in {str(item).lower() for item in schemas}:
        raise errors.invalid_syntax(Reason(ScimCode.SCHEMA_MISSING, {"schema": schema}))
    document: dict[str, Any] = body
    return document


def _list_document(rows: list[dict[str, Any]], total: int, start: int) -> dict[str, Any]:
    return {
        "schemas": [resources.LIST],
        "totalResults": total,
        "startIndex": start,
        "itemsPerPage": len(rows),
        "Resources": rows,
    }


def _page(params: Mapping[str, str], matches: Sequence[tuple[Resources, QuerySet[Any]]]) -> Response:
    """Return the requested page of these rows, one resource type after the other."""
    start = min(max(_number(params.get("startIndex"), "startIndex", 1), 1), MAX_START)
    count = min(max(_number(params.get("count"), "count", MAX_PAGE), 0), MAX_PAGE)
    total = 0
    shown: list[dict[str, Any]] = []
    for view, rows in matches:
        first = max(0, start - 1 - total)
        total += rows.count()
        page = rows[first : first + count - len(shown)]
        shown += [view.projected(view.represent(row)) for row in page]
    return Response(_list_document(shown, total, start))


def _number(text: str | None, name: str, default: int) -> int:
    if text is None:
        return default
    try:
        return int(text) if len(text) < 100 else int(text[:100])
    except ValueError:
        raise errors.invalid_value(name) from None


def _versions(request: Request, header: str) -> list[str]:
    """Return the versions in a conditional header, in the form of `meta.version`."""
    tags = [tag.strip() for tag in request.headers.get(header, "").split(",") if tag.strip()]
    return [tag if tag == "*" or tag.startswith("W/") else f"W/{tag}" for tag in tags]


# CSRF-exempt so that a POST gets 404 as well. The view changes nothing.
@csrf_exempt
@login_not_required
def unknown_endpoint(_request: HttpRequest, **_kwargs: Any) -> HttpResponse:
    """Answer 404 as a SCIM error for unknown paths below /scim/."""
    body = json.dumps(_error(404, errors.no_such_resource().sentence))
    return HttpResponse(body, status=404, content_type=CONTENT_TYPE)


urlpatterns = [
    path("v2/ServiceProviderConfig", ServiceProviderConfig.as_view()),
    path("v2/ResourceTypes", ResourceTypes.as_view()),
    path("v2/ResourceTypes/<str:name>", ResourceTypes.as_view()),
    path("v2/Schemas", Schemas.as_view()),
    path("v2/Schemas/<str:name>", Schemas.as_view()),
    path("v2/Users", Users.as_view()),
    path("v2/Users/.search", UserSearch.as_view()),
    path("v2/Users/<uuid:scim_id>", Users.as_view()),
    path("v2/Groups", Groups.as_view()),
    path("v2/Groups/.search", GroupSearch.as_view()),
    path("v2/Groups/<uuid:scim_id>", Groups.as_view()),
    path("v2/Me", NotSupported.as_view()),
    path("v2/Bulk", NotSupported.as_view()),
    path("v2/.search", SearchAll.as_view()),
    re_path(r"", unknown_endpoint),
]
