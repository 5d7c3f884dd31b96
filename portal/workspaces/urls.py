from __future__ import annotations

from django.urls import path

from portal.workspaces import gpu_views, package_views, resize_views, stream_urls, use_views, views
from portal.workspaces.homes import evacuation_views
from portal.workspaces.homes import views as home_views

app_name = "workspaces"
urlpatterns = [
    *stream_urls.urlpatterns,
    path("workspaces/<uuid:workspace_id>/", views.detail, name="detail"),
    path("workspaces/<uuid:workspace_id>/use/", use_views.use, name="use"),
    path("workspaces/<uuid:workspace_id>/logs/", views.log, name="logs"),
    path("workspaces/<uuid:workspace_id>/logs/download/", views.download_log, name="download-log"),
    path("workspaces/<uuid:workspace_id>/open/", views.open_workspace, name="open"),
    path("workspaces/<uuid:workspace_id>/start/", views.start, name="start"),
    path("workspaces/<uuid:workspace_id>/stop/", views.stop, name="stop"),
    path("workspaces/<uuid:workspace_id>/extend/", views.extend, name="extend"),
    path("workspaces/<uuid:workspace_id>/release-gpu/", gpu_views.release, name="release-gpu"),
    path("workspaces/<uuid:workspace_id>/attach-gpu/", gpu_views.attach, name="attach-gpu"),
    path("workspaces/<uuid:workspace_id>/resize/", resize_views.resize, name="resize"),
    path("workspaces/<uuid:workspace_id>/delete/", views.delete, name="delete"),
    path("workspaces/<uuid:workspace_id>/packages/", package_views.packages, name="packages"),
    path("workspaces/<uuid:workspace_id>/packages/reset/", package_views.reset, name="reset-packages"),
    path(
        "workspaces/<uuid:workspace_id>/packages/reset/cancel/",
        package_views.cancel_reset,
        name="cancel-reset-packages",
    ),
    path("workspaces/<uuid:workspace_id>/packages/save/", package_views.save, name="save-packages"),
    path("homes/", home_views.homes, name="homes"),
    path("homes/<int:home_id>/move/", home_views.move, name="home-move"),
    path("homes/moves/<uuid:home_move_id>/cancel/", home_views.cancel_move, name="home-move-cancel"),
    path("homes/nodes/<uuid:node_id>/", evacuation_views.node_homes, name="node-homes"),
    path(
        "homes/evacuations/<uuid:home_evacuation_id>/cancel/",
        evacuation_views.cancel,
        name="home-evacuation-cancel",
    ),
    path("homes/lost/<uuid:lost_home_id>/recreate/", home_views.recreate, name="home-recreate"),
    path("machines/<uuid:machine_id>/delete/", home_views.machine_remove, name="machine-delete"),
]
