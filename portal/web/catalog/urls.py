from __future__ import annotations

from django.urls import path

from portal.web.catalog import views
from portal.web.catalog.completions import completions

app_name = "catalog_pages"


def _routes(kind: str) -> list[object]:
    at, how = f"catalog/{kind}s/", {"kind": kind}
    return [
        path(at, views.listing, how, name=f"{kind}s"),
        path(f"{at}new/", views.new, how, name=f"new-{kind}"),
        path(f"{at}<slug:slug>/", views.detail, how, name=kind),
        path(f"{at}<slug:slug>/edit/", views.edit, how, name=f"edit-{kind}"),
        path(f"{at}<slug:slug>/delete/", views.delete, how, name=f"delete-{kind}"),
        path(f"{at}<slug:slug>/versions/<int:number>/restore/", views.restore, how, name=f"restore-{kind}"),
    ]


urlpatterns = [
    *_routes("template"),
    *_routes("flavor"),
    *(
        path(f"catalog/completions/{kind}s/", completions, {"kind": kind}, name=f"complete-{kind}s")
        for kind in ("template", "flavor", "environment", "team")
    ),
]
