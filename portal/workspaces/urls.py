from __future__ import annotations

from django.urls import path

from portal.workspaces import stream_urls, views

app_name = "workspaces"
urlpatterns = [
    *stream_urls.urlpatterns,
    path("workspaces/<uuid:workspace_id>/", views.detail, name="detail"),
    path("workspaces/<uuid:workspace_id>/log/", views.log, name="log"),
    path("workspaces/<uuid:workspace_id>/open/", views.open_, name="open"),
    path("workspaces/<uuid:workspace_id>/start/", views.start, name="start"),
    path("workspaces/<uuid:workspace_id>/stop/", views.stop, name="stop"),
    path("workspaces/<uuid:workspace_id>/delete/", views.delete, name="delete"),
]
