"""What NCCL is told, by its environment, for a check of the link between two nodes."""

from __future__ import annotations

import os

from provisioning.gpu.check.nccl import MESSAGES
from provisioning.gpu.check.types import Meeting

NET = {"rdma": "IB", "socket": "Socket"}
"""By the name that NCCL has for it. One that cannot be used is an error, and nothing else takes its place."""
OF_THIS_NODE = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL")
"""Which of its networks a node's jobs use is the node's own affair: taken from the worker's environment."""


def of(meeting: Meeting) -> dict[str, str]:
    """The environment of the process that does it.

    With `NCCL_COMM_ID` no identifier has to be carried from one node to the other: both make it of the place
    where they meet, and rank 0 listens there. Two ranks that happen to be on one machine go by the network,
    too: it is the link that is asked for.
    """
    here = {name: os.environ[name] for name in OF_THIS_NODE if os.environ.get(name)}
    return {
        **here,
        **MESSAGES,
        "NCCL_COMM_ID": meeting.place,
        "NCCL_NET": NET[meeting.transport],
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    }
