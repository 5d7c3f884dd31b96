from django.apps import AppConfig


class IdentityConfig(AppConfig):
    name = "portal.people.identity"
    label = "identity"

    def ready(self) -> None:
        # Models have to be loaded first; it registers itself.
        from portal.people.identity import system_checks  # noqa: F401
