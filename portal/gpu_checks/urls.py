from __future__ import annotations

from django.urls import path

from portal.gpu_checks import views

app_name = "gpu_checks"
urlpatterns = [
    path("pools/<slug:slug>/checks/", views.pool_checks, name="pool-checks"),
    path("gpus/devices/<uuid:device_id>/checks/", views.device_checks, name="device-checks"),
    path("gpus/devices/<uuid:device_id>/reset/", views.reset, name="reset"),
    path("gpus/nodes/<uuid:node_id>/check-link/", views.node_link, name="check-link"),
    path("gpus/nodes/<uuid:node_id>/check-joint/", views.node_joint, name="check-joint"),
    path("gpus/checks/<uuid:check_id>/", views.check, name="check"),
]
