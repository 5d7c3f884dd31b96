from __future__ import annotations

from django.urls import path

from portal.inventory import views

app_name = "inventory"
urlpatterns = [
    path("pools/", views.pools, name="pools"),
    path("pools/<slug:slug>/", views.pool, name="pool"),
]
