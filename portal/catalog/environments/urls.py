from __future__ import annotations

from django.urls import path

from portal.catalog.environments import views

app_name = "environments"
urlpatterns = [
    path("environments/", views.environment_list, name="list"),
    path("environments/new/", views.new, name="new"),
    path("environments/<slug:slug>/", views.detail, name="detail"),
    path("environments/<slug:slug>/edit/", views.edit, name="edit"),
    path("environments/<slug:slug>/build/", views.build, name="rebuild"),
    path("environments/<slug:slug>/versions/<int:number>/restore/", views.restore, name="restore"),
    path("environments/<slug:slug>/builds/<uuid:build_id>/", views.build_page, name="build"),
    path("environments/<slug:slug>/builds/<uuid:build_id>/cancel/", views.cancel, name="cancel"),
    path(
        "environments/<slug:slug>/builds/<uuid:build_id>/log/download/",
        views.download_build_log,
        name="download-build-log",
    ),
    path("environments/<slug:slug>/delete/", views.delete, name="delete"),
]
