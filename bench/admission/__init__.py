"""How fast the portal decides over its database: previews with a full site, and admissions in a row."""
