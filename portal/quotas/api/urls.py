"""REST endpoints of quotas; each subject appends its own."""

from __future__ import annotations

from portal.quotas.api import ledger, limits, queue, requests, site

urlpatterns = [
    *queue.urlpatterns,
    *limits.urlpatterns,
    *ledger.urlpatterns,
    *site.urlpatterns,
    *requests.urlpatterns,
]
