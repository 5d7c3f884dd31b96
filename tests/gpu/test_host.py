"""Facts of hosts from kernel files below a root folder."""

from __future__ import annotations

from pathlib import Path

from provisioning.gpu import host
from provisioning.gpu.topology import PciLocation, pci_place

SAPPHIRE_RAPIDS = "fpu avx2 fma avx512f avx512dq avx512bw avx512vl avx512_bf16 amx_bf16 amx_tile amx_int8"
MILAN = "fpu sse4_2 avx2 fma"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def cpuinfo(flags: str, *, sockets: int = 2, cores: int = 2, threads: int = 2) -> str:
    blocks = []
    number = 0
    for _thread in range(threads):
        for socket in range(sockets):
            for core in range(cores):
                blocks.append(
                    f"processor\t: {number}\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\n"
                    f"physical id\t: {socket}\ncore id\t\t: {core}\nflags\t\t: {flags}\n"
                )
                number += 1
    return "\n".join(blocks)


def node(number: int, cpus: str, mib: int) -> dict[str, str]:
    folder = f"sys/devices/system/node/node{number}"
    return {
        f"{folder}/cpulist": cpus,
        f"{folder}/meminfo": f"Node {number} MemTotal:       {mib << 10} kB\nNode {number} MemFree: 1 kB",
    }


def pci(root: Path, bus: str, vendor: str, device: str, kind: str, numa: int = 0) -> None:
    write(
        root,
        {
            f"sys/bus/pci/devices/{bus}/{name}": text
            for name, text in (
                ("vendor", vendor), ("device", device), ("class", kind), ("numa_node", str(numa))
            )
        },
    )  # fmt: skip


def test_cpu_of_two_sockets(tmp_path):
    write(tmp_path, {"proc/cpuinfo": cpuinfo(SAPPHIRE_RAPIDS)})
    facts = host.cpu(tmp_path)
    assert (facts.threads, facts.cores, facts.sockets) == (8, 4, 2)
    assert facts.model == "Intel(R) Xeon(R) Platinum 8480C"
    assert facts.features == ("amx", "avx512", "avx512_bf16", "avx2")


def test_cpu_feature_needs_all_flags_on_every_cpu(tmp_path):
    write(tmp_path, {"proc/cpuinfo": cpuinfo("avx2 fma")})
    assert host.cpu(tmp_path).features == ("avx2",)
    write(tmp_path, {"proc/cpuinfo": cpuinfo("avx2 fma avx512f amx_tile")})
    assert host.cpu(tmp_path).features == ("avx2",)
    mixed = cpuinfo(SAPPHIRE_RAPIDS, sockets=1) + cpuinfo(MILAN, sockets=1)
    write(tmp_path, {"proc/cpuinfo": mixed})
    assert host.cpu(tmp_path).features == ("avx2",)


def test_arm_host(tmp_path):
    block = "processor\t: {}\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve sve2\nCPU part\t: 0xd4f\n"
    write(tmp_path, {"proc/cpuinfo": "\n".join(block.format(number) for number in range(72))})
    facts = host.cpu(tmp_path)
    assert (facts.threads, facts.cores, facts.sockets, facts.features) == (72, 0, 1, ("sve", "sve2"))


def test_cxl_memory_is_a_cpuless_node_behind_a_cxl_region(tmp_path):
    write(
        tmp_path,
        {
            **node(0, "0-55", 515_000),
            **node(1, "56-111", 516_000),
            **node(2, "", 262_144),
            "sys/devices/virtual/memory_tiering/memory_tier4/nodelist": "0-1",
            "sys/devices/virtual/memory_tiering/memory_tier22/nodelist": "2",
            "sys/devices/platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0/dax0.0/target_node": "2",
        },
    )
    link = tmp_path / "sys/bus/dax/devices/dax0.0"
    link.parent.mkdir(parents=True)
    real = tmp_path / "sys/devices/platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0/dax0.0"
    link.symlink_to(real)
    nodes = host.numa_nodes(tmp_path)
    assert [(item.kind, item.tier, item.memory_mib) for item in nodes] == [
        ("dram", 4, 515_000), ("dram", 4, 516_000), ("cxl", 22, 262_144)
    ]  # fmt: skip
    assert "memory_tier:cxl" in host.read_host_facts(tmp_path).provides


def test_persistent_memory_is_distinguished_from_cxl(tmp_path):
    real = tmp_path / "sys/devices/LNXSYSTM:00/ACPI0012:00/ndbus0/region0/dax0.0/dax0.0"
    write(tmp_path, {**node(0, "0-7", 64_000), **node(1, "", 128_000)})
    real.mkdir(parents=True)
    (real / "target_node").write_text("1\n")
    link = tmp_path / "sys/bus/dax/devices/dax0.0"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert [item.kind for item in host.numa_nodes(tmp_path)] == ["dram", "pmem"]


def test_other_cpuless_nodes_are_not_cxl(tmp_path):
    write(
        tmp_path,
        {
            **node(0, "0-47", 128_000),
            **node(1, "", 64_000),
            **node(2, "", 96_000),  # such as the memory of a Grace Hopper's GPU
            **node(3, "", 0),
            "sys/devices/virtual/memory_tiering/memory_tier4/nodelist": "0,2",
            "sys/devices/virtual/memory_tiering/memory_tier2/nodelist": "1",
        },
    )
    assert [item.kind for item in host.numa_nodes(tmp_path)] == ["dram", "hbm", "memory"]
    assert host.read_host_facts(tmp_path).provides == ("memory_tier:hbm",)


def test_rdma_ports_with_their_state_and_rate(tmp_path):
    base = "sys/class/infiniband"
    write(
        tmp_path,
        {
            f"{base}/mlx5_0/ports/1/state": "4: ACTIVE",
            f"{base}/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
            f"{base}/mlx5_0/ports/1/link_layer": "InfiniBand",
            f"{base}/mlx5_1/ports/1/state": "1: DOWN",
            f"{base}/mlx5_1/ports/1/rate": "2.5 Gb/sec (1X SDR)",
            f"{base}/mlx5_1/ports/1/link_layer": "Ethernet",
            "sys/devices/pci0000:15/0000:18:00.0/numa_node": "1",
        },
    )
    (tmp_path / base / "mlx5_0/device").symlink_to(tmp_path / "sys/devices/pci0000:15/0000:18:00.0")
    up, down = host.rdma_ports(tmp_path)
    assert (up.active, up.rate_mbit_s, up.link_layer, up.pci_bus_id, up.numa) == (
        True, 400_000, "InfiniBand", "0000:18:00.0", 1
    )  # fmt: skip
    assert (down.active, down.state, down.rate_mbit_s, down.numa) == (False, "down", 2_500, -1)
    assert "rdma" in host.read_host_facts(tmp_path).provides
    write(tmp_path, {f"{base}/mlx5_0/ports/1/state": "2: INIT"})
    assert "rdma" not in host.read_host_facts(tmp_path).provides


def test_dpu_is_one_card_and_gpus_are_counted(tmp_path):
    pci(tmp_path, "0000:2a:00.0", "0x15b3", "0xa2dc", "0x020000", 1)
    pci(tmp_path, "0000:2a:00.1", "0x15b3", "0xa2dc", "0x020000", 1)
    pci(tmp_path, "0000:18:00.0", "0x15b3", "0x1021", "0x020700")  # ConnectX-7: no DPU
    pci(tmp_path, "0000:1b:00.0", "0x10de", "0x2335", "0x030200")
    pci(tmp_path, "0000:2b:00.0", "0x10de", "0x1eb8", "0x030000")
    pci(tmp_path, "0000:07:00.0", "0x10de", "0x22a3", "0x068000")  # NVSwitch: no GPU
    facts = host.read_host_facts(tmp_path)
    assert [(dpu.name, dpu.pci_slot, dpu.numa) for dpu in facts.dpus] == [
        ("NVIDIA BlueField-3", "0000:2a:00", 1)
    ]
    assert facts.provides == ("dpu_offload",) and facts.nvidia_gpus_on_pci == 2


def test_missing_or_malformed_files_cause_no_error(tmp_path):
    facts = host.read_host_facts(tmp_path)
    assert facts.cpu.threads == 0 and facts.provides == () and facts.numa == ()
    write(
        tmp_path,
        {
            "proc/cpuinfo": "garbage\0\nflags\n: :",
            "sys/devices/system/node/node0/meminfo": "MemTotal: lots",
            "sys/devices/virtual/memory_tiering/memory_tier4/nodelist": "a-b,3-,-1,1-2",
            "sys/bus/pci/devices/0000:00:00.0/vendor": "none",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "fast",
            "sys/bus/dax/devices/dax0.0/target_node": "-1",
        },
    )
    facts = host.read_host_facts(tmp_path)
    assert facts.provides == () and facts.rdma[0].rate_mbit_s == 0
    assert host.cpu_list("0-2,5,x,7-") == [0, 1, 2, 5]


def test_gpu_behind_root_ports_only_has_no_switch(tmp_path):
    real = tmp_path / "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0"
    write(tmp_path, {"sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/numa_node": "-1"})
    link = tmp_path / "sys/bus/pci/devices/0000:16:00.0"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    assert pci_place("0000:16:00.0", tmp_path) == PciLocation(-1, "pci0000:15", "")
    assert pci_place("0000:99:00.0", tmp_path) == PciLocation()
    assert pci_place("", tmp_path).switch == ""
