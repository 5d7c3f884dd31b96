"""Pages of quotas; each subject appends its own."""

from __future__ import annotations

from django.urls import URLPattern

app_name = "quotas"
urlpatterns: list[URLPattern] = []
