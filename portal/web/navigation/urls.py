from __future__ import annotations

from django.urls import path

from portal.web.navigation import views

app_name = "navigation"
urlpatterns = [path("search/", views.search, name="search")]
