"""Page and export of the audit log. See templates/events/audit.html for the context."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from django.core.paginator import Paginator
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from portal.common import csv_output
from portal.common.events import audit_stream, selectors, services
from portal.common.events.audit_entries import AuditEntrySerializer
from portal.common.events.audit_filters import AuditFilter
from portal.common.events.kinds import AuditKind
from portal.common.events.models import AuditSeal, Event
from portal.common.typed_requests import SignedInRequest

ROWS_PER_PAGE = 50
FILTERS = ("actor", "action", "object", "since", "until", "request_id")
FORMATS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


@require_safe
@never_cache
def audit(request: SignedInRequest) -> HttpResponse:
    """Show the audit log, newest first, with filters."""
    filtered = AuditFilter(request.GET, queryset=selectors.entries_for(request.user).select_related("actor"))
    valid = filtered.form.is_valid()
    page = Paginator(filtered.qs if valid else Event.objects.none(), ROWS_PER_PAGE)
    chosen = {name: request.GET[name] for name in FILTERS if request.GET.get(name)}
    context = {
        "page": page.get_page(request.GET.get("page")),
        "chosen": chosen,
        "form": filtered.form,
        "subjects": sorted({f"{kind.partition('.')[0]}." for kind in AuditKind}),
        "kinds": sorted(AuditKind),
        "seal": AuditSeal.objects.first(),
        "streams": audit_stream.receiver_progress(),
    }
    return render(request, "events/audit.html", context, status=200 if valid else 400)


@require_safe
@never_cache
def export(request: SignedInRequest, form: str) -> StreamingHttpResponse:
    """Stream all entries that match the filters, oldest first. The export itself is recorded."""
    if form not in FORMATS:
        raise Http404
    filtered = AuditFilter(request.GET, queryset=selectors.entries_for(request.user))
    rows = filtered.qs if filtered.form.is_valid() else Event.objects.none()
    if request.method == "GET":
        chosen = {name: request.GET[name] for name in FILTERS if request.GET.get(name)}
        services.record(
            actor=request.user,
            kind=AuditKind.AUDIT_EXPORTED,
            message="exported the audit log",
            data={"format": form, "filters": chosen},
        )
    entries = rows.order_by("pk").iterator(chunk_size=1000)
    lines = _csv(entries) if form == "csv" else _json_lines(entries)
    answer = StreamingHttpResponse(lines, content_type=FORMATS[form])
    day = timezone.localdate().isoformat()
    answer["Content-Disposition"] = f'attachment; filename="berth-audit-{day}.{form}"'
    return answer


def _json_lines(entries: Iterable[Event]) -> Iterator[str]:
    for entry in entries:
        yield json.dumps(AuditEntrySerializer(entry).data, ensure_ascii=False, default=str) + "\n"


def _csv(entries: Iterable[Event]) -> Iterator[str]:
    columns = list(AuditEntrySerializer.Meta.fields)
    yield csv_output.line(columns)
    for entry in entries:
        data = AuditEntrySerializer(entry).data
        yield csv_output.line(data[name] for name in columns)
