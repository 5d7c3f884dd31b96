"""Base of all REST endpoints: views, routes, problem responses and OpenAPI documentation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.http import HttpRequest, JsonResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from django_filters import rest_framework as filters  # type: ignore[import-untyped]
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import mixins, renderers, serializers, viewsets
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.metadata import SimpleMetadata
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView

from portal.common import idempotency, rate_limits, storage
from portal.common.errors import InvalidInput, NotFound
from portal.common.pagination import Pages
from portal.common.problem_codes import ProblemCode
from portal.common.problem_serializers import ProblemSerializer
from portal.common.problems import CONTENT_TYPE, document, plain_response
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import next_action_of
from portal.common.round_trips import drop_read_only_fields
from portal.common.scopes import Scope

if TYPE_CHECKING:
    from django.contrib.auth.models import _User as User

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V", bound=type[viewsets.GenericViewSet[Any]])

# Any endpoint may answer: unauthenticated, forbidden or rate-limited.
ALWAYS = (401, 403, 429)
RATE_LIMIT_POLICY = "RateLimit-Policy"
CREATED_STATUSES = (201, 202)
LOCATION = OpenApiParameter(
    "Location",
    {"type": "string", "format": "uri-reference"},
    OpenApiParameter.HEADER,
    required=True,
    description="Path of the new resource, or of its progress.",
    response=list(CREATED_STATUSES),
)
RETRY_AFTER = OpenApiParameter(
    "Retry-After",
    {"type": "integer", "minimum": 1},
    OpenApiParameter.HEADER,
    description="Seconds until the next request to `Location`.",
    response=list(CREATED_STATUSES),
)

if TYPE_CHECKING:

    class UserRequest(Request):
        """A request of a signed-in user, as the permissions have verified."""

        user: User

else:
    UserRequest = Request


# Base of request bodies. Rejects unknown fields. The OpenAPI document shows `examples` by field name. This is
# a comment, not a docstring, because subclasses would inherit a docstring in the OpenAPI document.
class StrictSerializer(serializers.Serializer[Any]):
    examples: ClassVar[Mapping[str, Any]] = {}

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = [str(key) for key in data if key not in self.fields]
            if unknown:
                names = ", ".join(self.fields)
                raise serializers.ValidationError(
                    {
                        key[:60].encode(errors="replace").decode(): [
                            _("Unknown field. Use one of: %(names)s.") % {"names": names}
                        ]
                        for key in unknown[:10]
                    }
                )
            others = {
                name: [message]
                for name, field in self.fields.items()
                if name in data and (message := _type_error(field, data[name]))
            }
            if others:
                raise serializers.ValidationError(others)
        return super().to_internal_value(data)


def _type_error(field: serializers.Field[Any, Any, Any, Any], value: Any) -> str:
    """Return an error message if the JSON type of `value` does not match the field, else "".

    DRF coerces numbers to text, and numbers or text to booleans. The OpenAPI document does not allow this.
    """
    if isinstance(field, serializers.ListField | serializers.DictField):
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        return next((message for item in values if (message := _type_error(field.child, item))), "")
    text = isinstance(field, serializers.CharField) and isinstance(value, int | float)
    boolean = isinstance(field, serializers.BooleanField) and not isinstance(value, bool | None)
    number = isinstance(field, serializers.IntegerField | serializers.FloatField) and isinstance(value, bool)
    return str(field.error_messages["invalid"]) if text or boolean or number else ""


def body_of(
    request: Request, serializer: type[serializers.Serializer[Any]], *, partial: bool = False, **context: Any
) -> dict[str, Any]:
    """Return the request body, validated by `serializer`. Raises DRF's `ValidationError`.

    A PUT or PATCH may send the body that GET returns. With `partial`, the body may lack any field.
    """
    body = serializer(data=request.data, context=context, partial=partial)
    body.initial_data = drop_read_only_fields(request, body)
    body.is_valid(raise_exception=True)
    validated: dict[str, Any] = body.validated_data
    return validated


@contextmanager
def not_found_as_invalid(field: str) -> Iterator[None]:
    """Report a `NotFound` raised inside the block as `InvalidInput` on `field` of the request body."""
    try:
        yield
    except NotFound as error:
        raise InvalidInput(error.reason, errors={field: [error.message]}) from error


class Metadata(SimpleMetadata):
    """Metadata for OPTIONS: accepted and returned media types. Fields are in the OpenAPI document."""

    def determine_actions(self, request: Request, view: Any) -> dict[str, Any]:
        return {}


class ApiView(APIView):
    """Base of a REST endpoint.

    - `scopes`: required token scope by HTTP method.
    - `query_params`: accepted query parameters. An empty value is refused, except for those in
      `may_be_empty`.
    - `observed`: fields that GET shows and that change by themselves (`portal/common/round_trips.py`).
    - `operation_ids`: operation ids in the OpenAPI document, by action, or by HTTP method in a view without
      actions: `{"list": "listTeams"}`. Generated clients use them as method names, so released ids never
      change. See "Verbs" in docs/api.md.
    - `tag`: group of the operations in the OpenAPI document.
    """

    tag: ClassVar[str]
    operation_ids: ClassVar[Mapping[str, str]]
    scopes: ClassVar[Mapping[str, str]]
    query_params: frozenset[str] = frozenset()
    may_be_empty: frozenset[str] = frozenset()
    observed: ClassVar[frozenset[str]] = frozenset()
    metadata_class = Metadata
    request: UserRequest

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not hasattr(self, (request.method or "").lower()):
            # Check the method before the parameters, which depend on it.
            raise MethodNotAllowed(request.method or "")
        allowed = self.known_params()
        unknown = [name for name in request.query_params if name not in allowed]
        if unknown:
            reason = Reason(CommonCode.UNKNOWN_PARAMETER, {"known": sorted(allowed)})
            sentence = _("Unknown parameter. %(known)s") % {"known": next_action_of(reason)}
            raise InvalidInput(reason, errors={name[:60]: [sentence] for name in unknown[:10]})
        empty = [name for name, values in request.query_params.lists() if not all(map(str.strip, values))]
        if rejected := [name for name in empty if name not in self.may_be_empty]:
            # A script's empty variable must not remove a filter.
            blank = serializers.CharField.default_error_messages["blank"]
            raise serializers.ValidationError({name: [blank] for name in rejected})

    def known_params(self) -> frozenset[str]:
        return self.query_params

    def current(self) -> Response:
        """Return the response of GET at the URL of this PUT or PATCH."""
        shown: Response = self.get(self.request, **self.kwargs)  # type: ignore[attr-defined]
        return shown

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        answer: Any = super().finalize_response(request, response, *args, **kwargs)
        # Read the cached user only: responses to failed authentication pass through here, too.
        user = getattr(request, "_user", None)
        user_id = user.pk if user is not None and user.is_authenticated else None
        if policy := rate_limits.policy_of_requests(user_id):
            answer[RATE_LIMIT_POLICY] = policy
        if idempotency.is_ignored(request):
            answer[idempotency.IGNORED] = "empty"
        return answer

    def handle_exception(self, exc: Exception) -> Response:
        if (refused := storage.unavailable_error(exc)) is not None:
            log.error("database is not writable: %s", refused.reason.code, exc_info=exc)
            exc = refused
        try:
            return super().handle_exception(exc)
        except RequestDataTooBig:
            return _problem(413, ProblemCode.TOO_LARGE, _("The body is too large."), self.request)
        except SuspiciousOperation as error:
            return _problem(400, ProblemCode.BAD_REQUEST, str(error), self.request)
        except Exception as error:
            # Send the signal that Django would send, so that logs, tests and monitors see the error.
            got_request_exception.send(sender=type(self), request=self.request._request)
            log.error("%s %s failed", self.request.method, self.request.path, exc_info=error)
            return _problem(
                500,
                ProblemCode.INTERNAL_ERROR,
                _("Internal error in the portal."),
                self.request,
                next_action=_("Try again. If the error persists, give the request_id to an operator."),
            )


class ApiViewSet(ApiView, viewsets.GenericViewSet[Any]):
    """Base of the endpoints of one resource. Services decide who may write.

    - `get_queryset` returns only rows visible to the actor.
    - `queryset` only supplies the model to the OpenAPI document.
    - `ordering` starts with a field of the row itself and ends with a unique field.
    - `sorts`: orders selectable by `sort`; the first is the default.
    - `missing`: code of the error for a row that does not exist.
    """

    pagination_class = Pages
    filterset_class: type[filters.FilterSet] | None = None
    ordering: ClassVar[tuple[str, ...]]
    sorts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    missing: ClassVar[StrEnum]

    def known_params(self) -> frozenset[str]:
        if self.action != "list":
            return self.query_params
        names = self.filterset_class.base_filters.keys() if self.filterset_class else ()
        return self.query_params | {"cursor", "page_size", *names, *({"sort"} if self.sorts else ())}

    def sorted_by(self) -> tuple[str, ...]:
        """Return the requested order of the list. Raises `ValidationError` for an unknown `sort`."""
        order = self.request.query_params.get("sort") if self.sorts else None
        if order is None:
            return self.ordering
        if order not in self.sorts:
            sentence = serializers.ChoiceField.default_error_messages["invalid_choice"]
            raise serializers.ValidationError({"sort": [sentence.format(input=order[:60])]})
        return self.sorts[order]

    def current(self) -> Response:
        action, self.action = self.action, self.action_map["get"]
        try:
            shown: Response = getattr(self, self.action)(self.request, **self.kwargs)
        finally:
            self.action = action
        return shown

    def get_object(self) -> Any:
        """Return the row named by the path. Raises `NotFound` with code `missing`."""
        row = self.get_queryset().filter(**{self.lookup_field: self.kwargs[self._lookup]}).first()
        if row is None:
            raise NotFound(Reason(self.missing))
        self.check_object_permissions(self.request, row)
        return row

    @property
    def _lookup(self) -> str:
        return self.lookup_url_kwarg or self.lookup_field

    def answer(self, row: Any, *, status: int = 200, **headers: str) -> Response:
        """Return a response with `row`, serialized for the current action."""
        return Response(self.get_serializer(row).data, status=status, headers=headers)


class ListViewSet(mixins.ListModelMixin, ApiViewSet):
    """A resource that can only be listed, with cursor pagination."""


class ReadViewSet(mixins.RetrieveModelMixin, ListViewSet):
    """A resource that can be listed and read."""


class IsSignedIn(IsAuthenticated):
    """Permit any authenticated user, with any token except SCIM tokens."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        scopes: Iterable[str] = getattr(request.auth, "scopes", ())
        return super().has_permission(request, view) and Scope.SCIM not in scopes


def _problem(status: int, code: ProblemCode, detail: str, request: Request, **extra: Any) -> Response:
    response = Response(document(status, code, detail, request, **extra), status=status)
    response.content_type = CONTENT_TYPE
    response.exception = True
    return response


# CSRF-exempt so that a POST gets 404 as well. The view changes nothing.
@csrf_exempt
@login_not_required
def unknown_endpoint(request: HttpRequest, **_kwargs: Any) -> JsonResponse:
    """Answer 404 as a problem document for unknown paths below /api/."""
    return plain_response(
        404,
        ProblemCode.NOT_FOUND,
        _("Endpoint not found."),
        request,
        next_action=_("See /api/v1/docs/ for all endpoints."),
    )


class Router(SimpleRouter):
    """Router with Django path converters. Every route exists with and without a trailing slash.

    Only the variant without a slash is documented.
    """

    def __init__(self) -> None:
        super().__init__(trailing_slash=False, use_regex_path=False)

    def get_urls(self) -> list[Any]:
        return [twin for url in super().get_urls() for twin in (url, self._with_slash(url))]

    def _with_slash(self, url: Any) -> URLPattern:
        view = url.callback
        twin = view.cls.as_view(dict(view.actions), **{**view.initkwargs, "schema": None})
        return path(f"{url.pattern}/", twin)


def routes(route: str, view: type[APIView], name: str) -> list[URLPattern]:
    """Return the routes of a view that is not a viewset, with and without a trailing slash."""
    return [
        path(route, view.as_view(), name=name),
        path(f"{route}/", view.as_view(schema=None)),
    ]


def operation(
    summary: str,
    *,
    responses: Mapping[Any, Any],
    errors: Iterable[int] = (),
    request: Any = None,
    description: str = "",
    parameters: Iterable[OpenApiParameter] = (),
    idempotent: bool = False,
    located: bool = True,
    retry_after_s: int = 0,
    **more: Any,
) -> Callable[[F], F]:
    """Document one method of an endpoint. Errors are problems; authentication errors are added automatically.

    - `idempotent`: accept an `Idempotency-Key`. The method then runs in one transaction and must wait only
      for the database. A method that lists the parameter handles keys itself.
    - `located`: responses 201 and 202 have a `Location` header. Set to False if the created object has no
      separate URL.
    - `retry_after_s`: seconds until the client should poll `Location` again, sent as `Retry-After`.
    """
    accepted = [*parameters, idempotency.PARAMETER] if idempotent else list(parameters)
    creates = any((key[0] if isinstance(key, tuple) else key) in CREATED_STATUSES for key in responses)
    headers = [*([LOCATION] if creates and located else []), *([RETRY_AFTER] if retry_after_s else [])]
    problems = {*ALWAYS, *errors, *((400, 409) if idempotent else ())}

    def document_method(method: F) -> F:
        chosen: Any = _with_retry_after(method, retry_after_s) if retry_after_s else method
        if idempotent:
            chosen = _with_idempotency_key(chosen)
        decorate = extend_schema(
            summary=summary,
            description=description or summary,
            request=request,
            responses={
                **responses,
                **{(status, CONTENT_TYPE): ProblemSerializer for status in sorted(problems)},
            },
            parameters=[*accepted, *headers],
            **more,
        )
        endpoint: F = decorate(chosen)
        return endpoint

    return document_method


def _with_retry_after(method: Callable[..., Response], retry_after_s: int) -> Callable[..., Response]:
    @wraps(method)
    def wrapper(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        response = method(view, request, *args, **kwargs)
        if response.status_code in CREATED_STATUSES:
            response["Retry-After"] = str(retry_after_s)
        return response

    return wrapper


def _with_idempotency_key(method: Callable[..., Response]) -> Callable[..., Response]:
    @wraps(method)
    def wrapper(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        return idempotency.answer_once(request, lambda: method(view, request, *args, **kwargs))

    return wrapper


def documented(
    *, list: str, retrieve: str = "", of: str = "", errors: Iterable[int] = ()
) -> Callable[[V], V]:
    """Document the list and detail operations of a resource. `of` describes the list."""

    def document_view(view: V) -> V:
        resource: Any = view
        serializer = resource.serializer_class
        operations = {
            "list": operation(
                list, description=of, responses={200: serializer(many=True)}, errors=[400, *errors]
            )
        }
        if retrieve:
            operations["retrieve"] = operation(retrieve, responses={200: serializer}, errors=[404])
        return extend_schema_view(**operations)(view)

    return document_view


class PlainTextRenderer(renderers.BaseRenderer):
    """Render text unchanged. Problems, which arrive as dictionaries, are rendered as JSON."""

    media_type = "text/plain"
    format = "txt"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, context: Any = None) -> bytes:
        if isinstance(data, str):
            return data.encode(errors="replace")
        return renderers.JSONRenderer().render(data)
