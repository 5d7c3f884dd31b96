"""The OpenAPI document of REST: names of its operations, its problems, its version. Knows no room."""
