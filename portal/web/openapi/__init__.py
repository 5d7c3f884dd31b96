"""The OpenAPI document of REST: its tags, problems and version. Independent of other packages."""
