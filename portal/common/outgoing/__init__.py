"""Requests to user-supplied URLs: address policy and HTTP client."""
