from __future__ import annotations

from django.urls import path

from portal.reports import views

app_name = "reports"
urlpatterns = [
    path("metrics", views.metrics, name="metrics"),
]
