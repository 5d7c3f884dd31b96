from __future__ import annotations

from django.urls import path

from portal.workspaces.secrets import views

app_name = "workspace_secrets"
urlpatterns = [
    path("account/secrets/", views.own_secrets, name="own"),
    path("teams/<slug:slug>/secrets/", views.team, name="team"),
    path("catalog/templates/<slug:slug>/secrets/", views.template, name="template"),
    path("secrets/<uuid:secret_id>/", views.detail, name="detail"),
    path("secrets/<uuid:secret_id>/delete/", views.delete, name="delete"),
]
