"""What people change: limits, requests for more, the ledger, bookings. Writes only; `actor` is required."""
