"""REST endpoints of quotas; each subject appends its own."""

from __future__ import annotations

from portal.quotas.api import ledger, limits, queue, requests, reservations, site

urlpatterns = [
    *queue.urlpatterns,
    *limits.urlpatterns,
    *ledger.urlpatterns,
    *reservations.urlpatterns,
    *site.urlpatterns,
    *requests.urlpatterns,
]
