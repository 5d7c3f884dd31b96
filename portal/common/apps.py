from django.apps import AppConfig


class CommonConfig(AppConfig):
    name = "portal.common"
    label = "common"

    def ready(self) -> None:
        from portal.common import checks, logs  # noqa: F401  (registers the checks)

        logs.configure()
