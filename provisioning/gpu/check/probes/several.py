"""Use several devices in one process: the checked one and its peers.

Every call is made while its device's context is current; afterwards the checked device's is current again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from provisioning.gpu.check.compiler import NoCubin
from provisioning.gpu.check.device import CudaError, Device
from provisioning.gpu.check.probes.base import Bench, Skip


@contextmanager
def on_device(bench: Bench, device: Device | None) -> Iterator[None]:
    """Make calls in the block for `device` (None: a peer being opened).

    Failures of a peer raise `Skip`, since they say nothing about the checked device.
    """
    try:
        if device is not None:
            device.make_current()
        yield
    except (CudaError, NoCubin) as error:
        if device is bench.device:
            raise
        name = f" GPU-{device.uuid}" if device is not None else ""
        raise Skip(f"The peer{name} failed: {error}.") from error
    finally:
        bench.device.make_current()


def open_peer(bench: Bench, stack: ExitStack, ordinal: int, units: tuple[str, ...] = ()) -> Device:
    """Return a visible peer with its kernels loaded, by default all; `stack` closes it."""
    with on_device(bench, None):
        peer = bench.device.peer(ordinal)
    stack.callback(close_peer, bench, peer)
    with on_device(bench, peer):
        peer.load(units)
    return peer


def close_peer(bench: Bench, peer: Device) -> None:
    """Release everything on the peer."""
    peer.close()
    bench.device.make_current()


def end_on(bench: Bench, device: Device, function: str, resource: Any) -> None:
    """Release `resource` by `function`; errors are ignored, since the original failure is reported."""
    with suppress(CudaError):
        device.make_current()
        device.call(function, resource)
    bench.device.make_current()


def free_on(bench: Bench, device: Device, address: int) -> None:
    """Free memory; errors are ignored, as in `end_on`."""
    with suppress(CudaError):
        device.make_current()
        device.free(address)
    bench.device.make_current()
