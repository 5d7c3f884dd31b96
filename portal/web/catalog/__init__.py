"""Pages that show and change catalog entries, with previews."""
