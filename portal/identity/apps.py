from django.apps import AppConfig


class IdentityConfig(AppConfig):
    name = "portal.identity"
    label = "identity"

    def ready(self) -> None:
        from portal.identity import system_checks  # noqa: F401  (it registers itself)
