from django.apps import AppConfig


class JoinRequestsConfig(AppConfig):
    name = "portal.people.join_requests"
    label = "join_requests"

    def ready(self) -> None:
        from portal.people.join_requests import services  # models have to be loaded first

        services.connect()
