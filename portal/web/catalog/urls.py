from __future__ import annotations

from django.urls import path

from portal.web.catalog import form_views, views
from portal.web.catalog.completions import completions

app_name = "catalog_pages"


def _routes(kind: str) -> list[object]:
    at, kwargs = f"catalog/{kind}s/", {"kind": kind}
    return [
        path(at, views.listing, kwargs, name=f"{kind}s"),
        path(f"{at}new/", form_views.new, kwargs, name=f"new-{kind}"),
        path(f"{at}<slug:slug>/", views.detail, kwargs, name=kind),
        path(f"{at}<slug:slug>/edit/", form_views.edit, kwargs, name=f"edit-{kind}"),
        path(f"{at}<slug:slug>/delete/", views.delete, kwargs, name=f"delete-{kind}"),
        path(
            f"{at}<slug:slug>/versions/<int:number>/restore/", views.restore, kwargs, name=f"restore-{kind}"
        ),
    ]


urlpatterns = [
    *_routes("template"),
    *_routes("flavor"),
    *(
        path(f"catalog/completions/{kind}s/", completions, {"kind": kind}, name=f"complete-{kind}s")
        for kind in ("template", "flavor", "environment", "team")
    ),
]
