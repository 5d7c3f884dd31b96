from django.apps import AppConfig


class GpuChecksConfig(AppConfig):
    name = "portal.gpu_checks"
    label = "gpu_checks"
