"""Processes of one workspace that compute together find each other in its own network, as Gloo and NCCL look.

Gloo takes the address of the host's name; NCCL that of the first interface that is no loopback, or the
loopback's where there is none. Both listen on any port there, and put large pieces into shared memory. Gloo
itself runs where BERTH_TEST_JAX_ENV names an environment with JAX. NCCL computes on GPUs alone, of which no
machine of the tests has two; how its ranks meet needs none, and is run where BERTH_TEST_NCCL_ENV names an
environment with its wheel.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.drivers.local.isolation import probe
from provisioning.types import ResourceRequest
from tests.provisioning.local.local_support import Pool, ask

ENVIRONMENT = "BERTH_TEST_JAX_ENV"
NCCL_ENVIRONMENT = "BERTH_TEST_NCCL_ENV"
PAIR_MIB = 64
"""In shared memory, and as much again over a socket."""

ADDRESSES = """
import fcntl, socket, struct
def address_of(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        found = fcntl.ioctl(one, 0x8915, struct.pack("256s", interface.encode()))  # SIOCGIFADDR
        return socket.inet_ntoa(found[20:24])
def as_gloo():
    return socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)[0][4][0]
def as_nccl():
    names = [name for _, name in socket.if_nameindex()]
    return address_of(next((name for name in names if name != "lo"), "lo"))
"""
# The first process listens and prints its address; the second writes to it and to shared memory.
PAIR = """
import mmap, sys
size = int(sys.argv[2]) << 20
with open("/dev/shm/pair", "a+b") as file:
    file.truncate(size)
    memory = mmap.mmap(file.fileno(), size)
if sys.argv[1] in globals():
    with socket.create_server((globals()[sys.argv[1]](), 0)) as server:
        print(*server.getsockname(), flush=True)
        peer, _ = server.accept()
        got = 0
        while part := peer.recv(1 << 20):
            got += len(part)
        print(got, memory[size - 1], flush=True)
else:
    memory[size - 1] = 7
    with socket.create_connection((sys.argv[3], int(sys.argv[4])), 20) as peer:
        peer.sendall(bytes(size))
"""
BOTH = """
import subprocess, sys
def begin(*argv):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *argv], stdout=subprocess.PIPE, text=True)
first = begin(LOOK, SIZE)
where = first.stdout.readline().split()
second = begin("joins", SIZE, *where)
print(where[0], first.stdout.readline(), second.wait(), first.wait())
"""
RANK = """
import sys, jax, numpy
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), initialization_timeout=120)
from jax.experimental import multihost_utils
print(multihost_utils.process_allgather(numpy.array([int(sys.argv[2]) + 1])).tolist(), flush=True)
"""
RANKS = """
import subprocess, sys
with socket.create_server((address := globals()[LOOK](), 0)) as free:
    port = free.getsockname()[1]
ranks = [
    subprocess.Popen(
        [sys.executable, "-c", RANK, f"{address}:{port}", str(rank)], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    for rank in range(2)
]
print(*(each.communicate()[0] for each in ranks))
"""
# Rank 0 makes the id for the others: its listening address, after a number, as a socket address.
MEETS = """
import ctypes, socket, subprocess, sys
nccl = ctypes.CDLL(LIBRARY)
made = ctypes.create_string_buffer(128)
status = nccl.ncclGetUniqueId(made)
address, port = socket.inet_ntoa(made.raw[12:16]), int.from_bytes(made.raw[10:12])
other = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 10); print('met')"
met = subprocess.run([sys.executable, "-c", other, address, str(port)], capture_output=True, text=True)
print(status, address == as_nccl(), met.stdout, met.stderr)
"""


@pytest.fixture(params=["open", "none"])
def egress(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pool(egress: str, tmp_path: Path) -> Iterator[Pool]:
    """Pools with and without a reachable network."""
    if probe().network is None:
        pytest.skip(probe().warning)
    named = os.environ.get(ENVIRONMENT)
    made = Pool(tmp_path, egress=egress, **({"environment": named} if named else {}))
    yield made
    made.close()


@pytest.fixture
def nccl_pool(egress: str, tmp_path: Path) -> Iterator[Pool]:
    """The same pool with the NCCL library in its environment."""
    named = os.environ.get(NCCL_ENVIRONMENT)
    if not named:
        pytest.skip(f"no environment with NCCL's library: name one in {NCCL_ENVIRONMENT}")
    if probe().network is None:
        pytest.skip(probe().warning)
    made = Pool(tmp_path, egress=egress, environment=named)
    yield made
    made.close()


def ran(pool: Pool, text: str, **names: str) -> str:
    """Run a program in a workspace with these names and `ADDRESSES`. Returns its output."""
    seen = pool.run(pool.spec(resources=ResourceRequest(cpu_milli=2000, memory_mib=1536)))
    program = "\n".join([ADDRESSES, *(f"{name} = {value!r}" for name, value in names.items()), text])
    run = f"__import__('subprocess').run(['python3', '-c', {program!r}], capture_output=True, text=True)"
    call = f"(lambda done: done.stdout + done.stderr)({run})"
    return str(ask(seen, call, timeout_s=180))


@pytest.mark.parametrize("look", ["as_gloo", "as_nccl"])
def test_two_processes_of_a_workspace_reach_each_other(pool: Pool, egress: str, look: str) -> None:
    said = ran(pool, BOTH, PROGRAM=ADDRESSES + PAIR, LOOK=look, SIZE=str(PAIR_MIB)).split()
    assert (said[0] == "127.0.0.1") is (egress == "none" or look == "as_gloo"), said
    assert said[1:] == [str(PAIR_MIB << 20), "7", "0", "0"]


@pytest.mark.parametrize("look", ["as_gloo", "as_nccl"])
def test_gloo_gathers_from_two_processes_of_a_workspace(pool: Pool, look: str) -> None:
    named = os.environ.get(ENVIRONMENT)
    if not named:
        pytest.skip(
            f"no environment with JAX, whose collectives on CPUs are Gloo's: name one in {ENVIRONMENT}"
        )
    subprocess.run([f"{named}/bin/python", "-c", "import jax"], check=True, timeout=120)
    said = ran(pool, RANKS, RANK=RANK, LOOK=look)
    assert said.count("[[1], [2]]") == 2, said


def test_nccl_ranks_connect_in_a_workspace(nccl_pool: Pool) -> None:
    (library,) = Path(os.environ[NCCL_ENVIRONMENT]).glob(
        "lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"
    )
    assert ran(nccl_pool, MEETS, LIBRARY=str(library)).split() == ["0", "True", "met"]
