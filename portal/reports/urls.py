from __future__ import annotations

from django.urls import path

from portal.reports import use_views, views

app_name = "reports"
urlpatterns = [
    path("metrics", views.metrics, name="metrics"),
    path("metrics/gpus", views.gpu_metrics, name="gpu-metrics"),
    path("reports/gpu-use/", use_views.gpu_use_page, name="gpu-use"),
    path("reports/gpu-use/csv/", use_views.gpu_use_csv, name="gpu-use-csv"),
    path("reports/idle-gpus/csv/", use_views.idle_gpus_csv, name="idle-gpus-csv"),
]
