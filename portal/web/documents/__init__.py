"""The documentation in `docs/` as pages of the portal, with a search (docs/adr/0065-documents.md)."""
