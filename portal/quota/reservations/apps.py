from django.apps import AppConfig


class ReservationsConfig(AppConfig):
    name = "portal.quota.reservations"
    label = "reservations"
