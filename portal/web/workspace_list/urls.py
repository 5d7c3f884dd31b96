from __future__ import annotations

from django.urls import path

from portal.web.workspace_list import act_views, views

app_name = "workspace_list"
urlpatterns = [
    path("workspaces/", views.listing, name="list"),
    path("workspaces/csv/", views.export, name="csv"),
    path("workspaces/act/", act_views.act, name="act"),
]
