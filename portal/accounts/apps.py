from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "portal.accounts"
    label = "accounts"

    def ready(self) -> None:
        from portal.accounts import changes, sessions  # models have to be loaded first

        changes.connect()
        sessions.connect()
