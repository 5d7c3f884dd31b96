"""URLs of the pages of orphans."""

from __future__ import annotations

from django.urls import path

from portal.workspaces.orphans import views

app_name = "orphans"
urlpatterns = [
    path("orphans/", views.listing, name="list"),
    path("orphans/refresh/", views.refresh, name="refresh"),
    path("orphans/<uuid:orphan_id>/delete/", views.delete, name="delete"),
]
