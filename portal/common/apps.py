from django.apps import AppConfig

from portal.common import logs, system_checks  # noqa: F401  (registers the checks)
from portal.common.reasons import rooms


class CommonConfig(AppConfig):
    name = "portal.common"
    label = "common"

    def ready(self) -> None:
        rooms.register_codes()
        logs.configure()
