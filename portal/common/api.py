"""What every endpoint of the REST API shares: the base views, routes, problems, documentation."""

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
from portal.common.scopes import Scope

if TYPE_CHECKING:
    from django.contrib.auth.models import _User as User

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V", bound=type[viewsets.GenericViewSet[Any]])

# What every endpoint may answer: who asks is not known, may not, or asks too often.
ALWAYS = (401, 403, 429)
TAKES_KEYS = "takes_idempotency_keys"
RATE_LIMIT_POLICY = "RateLimit-Policy"
MADE = (201, 202)
LOCATION = OpenApiParameter(
    "Location",
    {"type": "string", "format": "uri-reference"},
    OpenApiParameter.HEADER,
    required=True,
    description="The path of what was made, or of what shows how far it is.",
    response=list(MADE),
)
RETRY_AFTER = OpenApiParameter(
    "Retry-After",
    {"type": "integer", "minimum": 1},
    OpenApiParameter.HEADER,
    description="After how many seconds it is worth looking at `Location` again.",
    response=list(MADE),
)

if TYPE_CHECKING:

    class UserRequest(Request):
        """A request whose user is signed in, which permissions have seen to."""

        user: User

else:
    UserRequest = Request


# A request's body. A field that nobody knows is a mistake that should not pass in silence. The OpenAPI
# document shows `examples` of its fields, by name. (No docstring: the document would have it of every
# serializer that has none of its own.)
class StrictSerializer(serializers.Serializer[Any]):
    examples: ClassVar[Mapping[str, Any]] = {}

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = [str(key) for key in data if key not in self.fields]
            if unknown:
                known = ", ".join(self.fields)
                raise serializers.ValidationError(
                    {
                        key[:60].encode(errors="replace").decode(): [
                            _("Unknown field. Known: %(names)s.") % {"names": known}
                        ]
                        for key in unknown[:10]
                    }
                )
            others = {
                name: [said]
                for name, field in self.fields.items()
                if name in data and (said := _of_another_type(field, data[name]))
            }
            if others:
                raise serializers.ValidationError(others)
        return super().to_internal_value(data)


def _of_another_type(field: serializers.Field[Any, Any, Any, Any], value: Any) -> str:
    """What is wrong with a number in the place of text, or where a boolean has or has not to be one.

    Django REST framework takes both for what they could mean; the document for programs does not. Empty
    where nothing is.
    """
    if isinstance(field, serializers.ListField | serializers.DictField):
        held = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        return next((said for each in held if (said := _of_another_type(field.child, each))), "")
    text = isinstance(field, serializers.CharField) and isinstance(value, int | float)
    boolean = isinstance(field, serializers.BooleanField) and not isinstance(value, bool | None)
    number = isinstance(field, serializers.IntegerField | serializers.FloatField) and isinstance(value, bool)
    return str(field.error_messages["invalid"]) if text or boolean or number else ""


def body_of(
    request: Request, serializer: type[serializers.Serializer[Any]], **context: Any
) -> dict[str, Any]:
    """The request's body as `serializer` in this context has it. Raises DRF's `ValidationError`."""
    body = serializer(data=request.data, context=context)
    body.is_valid(raise_exception=True)
    given: dict[str, Any] = body.validated_data
    return given


@contextmanager
def named_in(field: str) -> Iterator[None]:
    """A name in a body that leads nowhere is a mistake of its field: `NotFound` becomes `InvalidInput`."""
    try:
        yield
    except NotFound as error:
        raise InvalidInput(error.reason, errors={field: [error.message]}) from error


class Metadata(SimpleMetadata):
    """OPTIONS says what is accepted and answered; the fields are in the OpenAPI document."""

    def determine_actions(self, request: Request, view: Any) -> dict[str, Any]:
        return {}


class ApiView(APIView):
    """One endpoint. `scopes` says which scope a token needs; `query_params` which parameters exist.

    `operation_ids` names its operations in the OpenAPI document, by action or, in a view without actions, by
    HTTP method: `{"list": "listTeams"}`. Clients make methods of the names, so a released name never changes.
    docs/api.md has the rules ("Verbs"). `tag` is the group of these operations.
    """

    tag: ClassVar[str]
    operation_ids: ClassVar[Mapping[str, str]]
    scopes: ClassVar[Mapping[str, str]]
    query_params: frozenset[str] = frozenset()
    metadata_class = Metadata
    request: UserRequest

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not hasattr(self, (request.method or "").lower()):
            # Before its parameters are looked at: they would be wrong for want of a method.
            raise MethodNotAllowed(request.method or "")
        if not self._takes_keys(request):
            idempotency.require_no_key(request)
        known = self.known_params()
        unknown = [name for name in request.query_params if name not in known]
        if unknown:
            reason = Reason(CommonCode.UNKNOWN_PARAMETER, {"known": sorted(known)})
            sentence = _("Unknown parameter. %(known)s") % {"known": next_action_of(reason)}
            raise InvalidInput(reason, errors={name[:60]: [sentence] for name in unknown[:10]})

    def known_params(self) -> frozenset[str]:
        return self.query_params

    def _takes_keys(self, request: Request) -> bool:
        name = getattr(self, "action", None) or (request.method or "").lower()
        return getattr(getattr(self, name, None), TAKES_KEYS, False)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        answer: Any = super().finalize_response(request, response, *args, **kwargs)
        # Who it was found to be, without looking again: what could not be looked up is answered, too.
        user = getattr(request, "_user", None)
        known = user.pk if user is not None and user.is_authenticated else None
        if policy := rate_limits.policy_of_requests(known):
            answer[RATE_LIMIT_POLICY] = policy
        return answer

    def handle_exception(self, exc: Exception) -> Response:
        if (refused := storage.unavailable(exc)) is not None:
            log.error("the database cannot be written: %s", refused.reason.code, exc_info=exc)
            exc = refused
        try:
            return super().handle_exception(exc)
        except RequestDataTooBig:
            return _problem(413, ProblemCode.TOO_LARGE, _("The body is too large."), self.request)
        except SuspiciousOperation as error:
            return _problem(400, ProblemCode.BAD_REQUEST, str(error), self.request)
        except Exception as error:
            # Reported as Django reports it, so that logs, tests and monitors see it; answered in our form.
            got_request_exception.send(sender=type(self), request=self.request._request)
            log.error("%s %s failed", self.request.method, self.request.path, exc_info=error)
            return _problem(
                500,
                ProblemCode.INTERNAL_ERROR,
                _("Something went wrong inside the portal."),
                self.request,
                next_action=_("Try again; if it stays, tell an operator the request_id."),
            )


class ApiViewSet(ApiView, viewsets.GenericViewSet[Any]):
    """The endpoints of one resource. `get_queryset` has the rows that the actor may see and no others.

    `queryset` only tells the model to the documentation. `ordering` begins with a field of the row itself and
    ends with a unique one; `sorts` are orders to choose from by `sort`, the first that without it.
    `missing` is the code of the refusal where there is no such row. Who may write is
    decided by the services, once, for pages and programs alike.
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
        """The order of the list that was asked for. Raises `ValidationError`."""
        given = self.request.query_params.get("sort") if self.sorts else None
        if given is None:
            return self.ordering
        if given not in self.sorts:
            sentence = serializers.ChoiceField.default_error_messages["invalid_choice"]
            raise serializers.ValidationError({"sort": [sentence.format(input=given[:60])]})
        return self.sorts[given]

    def get_object(self) -> Any:
        """The row that the path names. Raises `NotFound` with a text, unlike DRF's own."""
        row = self.get_queryset().filter(**{self.lookup_field: self.kwargs[self._lookup]}).first()
        if row is None:
            raise NotFound(Reason(self.missing))
        self.check_object_permissions(self.request, row)
        return row

    @property
    def _lookup(self) -> str:
        return self.lookup_url_kwarg or self.lookup_field

    def answer(self, row: Any, *, status: int = 200, **headers: str) -> Response:
        """`row` as the serializer of this action shows it."""
        return Response(self.get_serializer(row).data, status=status, headers=headers)


class ListViewSet(mixins.ListModelMixin, ApiViewSet):
    """A resource that can only be listed, in cursor pages."""


class ReadViewSet(mixins.RetrieveModelMixin, ListViewSet):
    """A resource that can be listed and read."""


class WhoeverSignedIn(IsAuthenticated):
    """Any token, whatever its scopes, but for those that are good for SCIM alone."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        scopes: Iterable[str] = getattr(request.auth, "scopes", ())
        return super().has_permission(request, view) and Scope.SCIM not in scopes


def _problem(status: int, code: ProblemCode, detail: str, request: Request, **extra: Any) -> Response:
    response = Response(document(status, code, detail, request, **extra), status=status)
    response.content_type = CONTENT_TYPE
    response.exception = True
    return response


# Nothing is done here, so nothing needs protection; and 404 is the answer to a POST too.
@csrf_exempt
@login_not_required
def unknown_endpoint(request: HttpRequest, **_kwargs: Any) -> JsonResponse:
    """404 in the API's form for every path below /api/ that is none of its own."""
    return plain_response(
        404,
        ProblemCode.NOT_FOUND,
        _("There is no such endpoint."),
        request,
        next_action=_("See /api/v1/docs/ for those that there are."),
    )


class Router(SimpleRouter):
    """Routes of Django's own converters, each with and without a slash at its end; only the latter is
    documented."""

    def __init__(self) -> None:
        super().__init__(trailing_slash=False, use_regex_path=False)

    def get_urls(self) -> list[Any]:
        return [twin for url in super().get_urls() for twin in (url, self._with_slash(url))]

    def _with_slash(self, url: Any) -> URLPattern:
        view = url.callback
        twin = view.cls.as_view(dict(view.actions), **{**view.initkwargs, "schema": None})
        return path(f"{url.pattern}/", twin)


def routes(route: str, view: type[APIView], name: str) -> list[URLPattern]:
    """An endpoint that is no resource, as `Router` has them: with and without a slash at its end."""
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
    once: bool = False,
    located: bool = True,
    goes_on_s: int = 0,
    **more: Any,
) -> Callable[[F], F]:
    """Document one method. Errors are problems; those of authentication come by themselves.

    With `once` it takes an `Idempotency-Key`, and with one it is carried out in one transaction, so it should
    wait for nothing but the database. A method that lists the parameter sees to its keys by itself.

    What answers 201 or 202 says in `Location` where that is, unless what is made has no address of its own or
    the one that was asked (not `located`). Where it goes on after the answer, `goes_on_s` is after how many
    seconds there may be something new: it is sent as `Retry-After`.
    """
    given = [*parameters, idempotency.PARAMETER] if once else list(parameters)
    made = any((each[0] if isinstance(each, tuple) else each) in MADE for each in responses)
    told = [*([LOCATION] if made and located else []), *([RETRY_AFTER] if goes_on_s else [])]
    problems = {*ALWAYS, *errors, *((400, 409) if once else ())}

    def documented_method(method: F) -> F:
        chosen: Any = _looked_at_again(method, goes_on_s) if goes_on_s else method
        if once:
            chosen = _carried_out_once(chosen)
        if idempotency.PARAMETER in given:
            setattr(chosen, TAKES_KEYS, True)
        described = extend_schema(
            summary=summary,
            description=description or summary,
            request=request,
            responses={
                **responses,
                **{(status, CONTENT_TYPE): ProblemSerializer for status in sorted(problems)},
            },
            parameters=[*given, *told],
            **more,
        )
        found: F = described(chosen)
        return found

    return documented_method


def _looked_at_again(method: Callable[..., Response], after_s: int) -> Callable[..., Response]:
    @wraps(method)
    def answered(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        response = method(view, request, *args, **kwargs)
        if response.status_code in MADE:
            response["Retry-After"] = str(after_s)
        return response

    return answered


def _carried_out_once(method: Callable[..., Response]) -> Callable[..., Response]:
    @wraps(method)
    def answered(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        return idempotency.answer_once(request, lambda: method(view, request, *args, **kwargs))

    return answered


def documented(
    *, list: str, retrieve: str = "", of: str = "", errors: Iterable[int] = ()
) -> Callable[[V], V]:
    """Document the reading of a resource: summaries, `of` as the list's description."""

    def document_view(view: V) -> V:
        resource: Any = view
        shown = resource.serializer_class
        operations = {
            "list": operation(list, description=of, responses={200: shown(many=True)}, errors=[400, *errors])
        }
        if retrieve:
            operations["retrieve"] = operation(retrieve, responses={200: shown}, errors=[404])
        return extend_schema_view(**operations)(view)

    return document_view


class PlainTextRenderer(renderers.BaseRenderer):
    """Text as it is; problems, which come as dictionaries, as JSON."""

    media_type = "text/plain"
    format = "txt"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, context: Any = None) -> bytes:
        if isinstance(data, str):
            return data.encode(errors="replace")
        return renderers.JSONRenderer().render(data)
