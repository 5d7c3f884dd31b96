"""Renews the token of a CI job while a command runs."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from portal.cli.client import BerthClient
from portal.cli.config import JOB_TOKEN
from portal.cli.errors import NotSignedIn, RequestRejected, Unreachable

RETRY_S = 2.0
CONFLICT = 409
MIN_PAUSE_S = 1.0


@contextlib.contextmanager
def renewing(base_url: str, token: str) -> Iterator[None]:
    """Renew a job token now and, within the block, after each half of its lifetime.

    Raises `NotSignedIn` if the token has expired. Does not renew other tokens.
    """
    if not token.startswith(JOB_TOKEN):
        yield
        return
    with BerthClient(base_url, token) as client:
        pause_s = _renew(client)
    done = threading.Event()
    threading.Thread(target=_keep, args=(base_url, token, pause_s, done), daemon=True).start()
    try:
        yield
    finally:
        # Do not join the thread: a request may wait for the portal. It ends with the process.
        done.set()


def _keep(base_url: str, token: str, pause_s: float, done: threading.Event) -> None:
    with BerthClient(base_url, token) as client:
        while not _has_ended(done, pause_s):
            try:
                pause_s = _renew(client)
            except NotSignedIn:
                # The command gets the same error and reports it.
                return


def _has_ended(done: threading.Event, pause_s: float) -> bool:
    """Return whether the command ends within `pause_s` seconds."""
    return done.wait(pause_s)


def _renew(client: BerthClient) -> float:
    """Renew the token. Returns the seconds until the next renewal. Raises `NotSignedIn`."""
    try:
        return max(MIN_PAUSE_S, client.tokens.renew()["expires_in"] / 2)
    except Unreachable:
        # The portal may be restarting.
        return RETRY_S
    except RequestRejected as error:
        if error.status != CONFLICT:
            return RETRY_S
        print(f"Token not renewed: {error.message}", file=sys.stderr)
        return threading.TIMEOUT_MAX
