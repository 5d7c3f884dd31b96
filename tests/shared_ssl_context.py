"""One TLS context for all httpx clients of a process that verify with the usual certificates.

Reading some hundred certificates takes httpx 20 ms per client, and so per `httpx.get`, mostly for a local
server without TLS.
"""

from __future__ import annotations

import os
import ssl
import sys
from functools import cache
from typing import Any


def share() -> None:
    """Share the context if httpx has been imported."""
    if "httpx" not in sys.modules:
        return
    from httpx._transports import default

    create = default.create_ssl_context

    @cache
    def usual(*_files: str | None) -> ssl.SSLContext:
        return create()

    def create_or_share(
        verify: ssl.SSLContext | str | bool = True, cert: Any = None, trust_env: bool = True
    ) -> ssl.SSLContext:
        if verify is True and cert is None and trust_env:
            return usual(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        return create(verify=verify, cert=cert, trust_env=trust_env)

    default.create_ssl_context = create_or_share
