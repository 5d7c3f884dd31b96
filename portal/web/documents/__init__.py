"""The documents of `docs/` as pages of the portal, with a search: docs/adr/0065-documents.md."""
