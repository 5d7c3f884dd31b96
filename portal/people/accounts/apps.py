from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "portal.people.accounts"
    label = "accounts"

    def ready(self) -> None:
        from portal.people.accounts import changes, sessions  # models have to be loaded first

        changes.connect()
        sessions.connect()
