from django.apps import AppConfig

from portal.common import logs, system_checks  # noqa: F401  (registers the checks)


class CommonConfig(AppConfig):
    name = "portal.common"
    label = "common"

    def ready(self) -> None:
        logs.configure()
