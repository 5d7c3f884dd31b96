"""The fixtures of `gateway_support`, for every test in this folder."""

from gateway_support import gateway, http, portal, redis, redis_async, redis_url, stack

__all__ = ["gateway", "http", "portal", "redis", "redis_async", "redis_url", "stack"]
