"""The OpenAPI document of REST: names of its operations, its problems, its headers. Knows no room."""
