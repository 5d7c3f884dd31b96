from __future__ import annotations

from django.urls import path

from portal.inventory import chart_views, gpu_views, views
from portal.inventory.checks import views as check_views

app_name = "inventory"
urlpatterns = [
    path("pools/", views.pools, name="pools"),
    path("pools/<slug:slug>/", views.pool, name="pool"),
    path("pools/<slug:slug>/checks/", check_views.pool_checks, name="pool-checks"),
    path("gpus/", gpu_views.gpus, name="gpus"),
    path("gpus/at/<slug:pool>/<str:node>/<int:index>/", gpu_views.at, name="device-at"),
    path("gpus/nodes/<uuid:node_id>/", gpu_views.node, name="node"),
    path("gpus/nodes/<uuid:node_id>/drain/", gpu_views.drain_node, name="drain-node"),
    path("gpus/devices/<uuid:device_id>/", gpu_views.device, name="device"),
    path("gpus/devices/<uuid:device_id>/drain/", gpu_views.drain_device, name="drain-device"),
    path("gpus/devices/<uuid:device_id>/checks/", check_views.device_checks, name="device-checks"),
    path("gpus/checks/<uuid:check_id>/", check_views.check, name="check"),
    path("gpus/devices/<uuid:device_id>/charts/", chart_views.device_charts, name="device-charts"),
]
