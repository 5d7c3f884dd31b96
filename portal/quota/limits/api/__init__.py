"""The REST API of quota, requests, ledger, bookings and the queue."""
