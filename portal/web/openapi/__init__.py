"""The OpenAPI document of REST: its tags, its problems, its version. Knows no room."""
