from __future__ import annotations

from django.urls import path

from portal.embedded import views

app_name = "embedded"
urlpatterns = [
    path("healthz", views.healthz, name="healthz"),
    path("healthz/live", views.live, name="live"),
]
