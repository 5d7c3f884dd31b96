from django.apps import AppConfig


class IdentityConfig(AppConfig):
    name = "portal.people.identity"
    label = "identity"

    def ready(self) -> None:
        from portal.people.identity import system_checks  # noqa: F401  (it registers itself)
