"""Speed of the portal's decisions over its database: previews on a full site, and admissions in sequence."""
