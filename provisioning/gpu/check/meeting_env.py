"""NCCL's environment for a check of the link between two nodes."""

from __future__ import annotations

import os

from provisioning.gpu.check.nccl import MESSAGES
from provisioning.gpu.check.types import Rendezvous

NET = {"rdma": "IB", "socket": "Socket"}
"""NCCL's names of networks. If one is unusable, NCCL fails without fallback."""
OF_THIS_NODE = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL")
"""The node's own choice of networks for jobs, taken from the worker's environment."""


def meeting_environ(meeting: Rendezvous) -> dict[str, str]:
    """Return the environment of the process that runs the check.

    With `NCCL_COMM_ID` no id needs to be sent between nodes: both derive it from the rendezvous, where rank 0
    listens. Two ranks on the same machine use the network too, since the link is under test.
    """
    own = {name: os.environ[name] for name in OF_THIS_NODE if os.environ.get(name)}
    return {
        **own,
        **MESSAGES,
        "NCCL_COMM_ID": meeting.address_text,
        "NCCL_NET": NET[meeting.transport],
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    }
