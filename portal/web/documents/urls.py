"""URLs of the documentation pages, below `/docs/`."""

from __future__ import annotations

from django.urls import path

from portal.web.documents import views
from portal.web.documents.library import DECISIONS_INDEX

app_name = "documents"
urlpatterns = [
    path("docs/", views.overview, name="overview"),
    path("docs/search/", views.find, name="search"),
    path("docs/adr/", views.page, {"name": DECISIONS_INDEX}, name="decisions"),
    path("docs/adr/<slug:name>/", views.decision, name="decision"),
    path("docs/files/<path:path>", views.file, name="file"),
    path("docs/<slug:name>/", views.page, name="page"),
]
