from __future__ import annotations

from django.urls import path

from portal.inventory import chart_views, views

app_name = "inventory"
urlpatterns = [
    path("pools/", views.pools, name="pools"),
    path("pools/<slug:slug>/", views.pool, name="pool"),
    path("gpus/devices/<uuid:device_id>/charts/", chart_views.device_charts, name="device-charts"),
]
