from __future__ import annotations

from django.urls import path

from portal.web.fleet.views import gpus, maintenance, pool_changes, pools, use

app_name = "fleet"
urlpatterns = [
    path("pools/", pools.pools, name="pools"),
    path("pools/new/", pool_changes.new, name="new-pool"),
    path("pools/<slug:slug>/", pools.pool, name="pool"),
    path("pools/<slug:slug>/use/", use.pool_use, name="pool-use"),
    path("pools/<slug:slug>/edit/", pool_changes.edit, name="edit-pool"),
    path("pools/<slug:slug>/maintenance/", maintenance.pool, name="pool-maintenance"),
    path("pools/<slug:slug>/maintenance/end/", maintenance.end_pool, name="end-pool-maintenance"),
    path("maintenance/", maintenance.site, name="maintenance"),
    path("maintenance/end/", maintenance.end_site, name="end-maintenance"),
    path("pools/<slug:slug>/retire/", pool_changes.retire, name="retire-pool"),
    path("pools/<slug:slug>/delete/", pool_changes.delete, name="delete-pool"),
    path("pools/<slug:slug>/versions/<int:number>/restore/", pool_changes.restore, name="restore-pool"),
    path("gpus/", gpus.gpus, name="gpus"),
    path("gpus/at/<slug:pool>/<str:node>/<int:index>/", gpus.redirect_to_device, name="device-at"),
    path("gpus/at/<slug:pool>/<str:node>/<int:index>/card/", gpus.gpu_card, name="gpu-card"),
    path("gpus/nodes/<uuid:node_id>/", gpus.node, name="node"),
    path("gpus/nodes/<uuid:node_id>/use/", use.node_use, name="node-use"),
    path("gpus/nodes/<uuid:node_id>/location/", gpus.location, name="node-location"),
    path("gpus/nodes/<uuid:node_id>/drain/", gpus.drain_node, name="drain-node"),
    path("gpus/devices/<uuid:device_id>/", gpus.device, name="device"),
    path("gpus/devices/<uuid:device_id>/drain/", gpus.drain_device, name="drain-device"),
    path("gpus/devices/<uuid:device_id>/use/", use.device_use, name="device-use"),
]
