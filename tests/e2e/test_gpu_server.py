"""The guide for GPU servers, command by command, with fake NVIDIA libraries in C.

They follow the driver's rules (tests/gpu/driver) and compute on the CPU, so the check uses small sizes.
Everything else is the product, on its own machine.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portal.cli.gpu import EXIT_CODES
from portal.gpu_checks.presenters import RECOVERY
from provisioning.gpu.check.compiler import nvrtc_version
from tests.e2e.how_to_machine import HowToMachine, blocks, needs
from tests.e2e.test_how_tos import TOKEN, ask, comes_to
from tests.gpu.check.host_build import host_build
from tests.gpu.driver import nvidia_smi
from tests.gpu.driver.conftest import build
from tests.gpu.driver.machine import Machine, uuid_of
from tests.systemd_machine import machine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("node-service"),
    pytest.mark.thorough("a machine with systemd; `make test` checks the unit's text"),
]
RELEASE = 570
MODEL = "Tesla T4"
GPUS = (uuid_of(1), uuid_of(2))
SIMULATED = 3 * 8
# For the machine's copy of this checkout: full sizes would take hours on a CPU.
SMALL = """

def sizes_for(device: Device, level: str) -> Sizes:
    return Sizes(
        copy_bytes=1 << 20, pcie_bytes=1 << 20, exact_side=128, exact_depth=64, rate_side=128,
        rate_side_wide=128, copies=2, launches=1,
    )


Bench.seconds = lambda self, default: 0.3
"""
# A token, and the checks of new GPUs without waiting for the clock, which asks for the next twice a minute.
BEGIN = f"""
{TOKEN.format(name="admin")}
import time
from portal.gpu_checks import policy
from portal.fleet.inventory.models import Device
until = time.monotonic() + 90
while Device.objects.filter(passed_at=None).exists() and time.monotonic() < until:
    policy.run()
    time.sleep(0.2)
"""
SIGN_IN = """
set -e
curl -s -c /run/jar localhost:8000/sign-in/ -o /run/sign-in
token=$(sed -n 's/.*name="csrfmiddlewaretoken" value="\\([^"]*\\)".*/\\1/p' /run/sign-in | head -1)
curl -s -b /run/jar -c /run/jar -o /dev/null localhost:8000/sign-in/ -d username=admin \\
    -d password=$1 -d csrfmiddlewaretoken=$token
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Two T4 under R570, and `nvidia-smi`."""
    if not nvrtc_version():
        pytest.skip("cuda-bindings or NVRTC is not installed")
    folder = tmp_path_factory.mktemp("gpus").resolve() / "driver"
    made = Machine.at(folder, build(RELEASE), RELEASE, [f"gpu T4 {uuid}" for uuid in GPUS])
    shutil.copy(host_build(), made.folder / "kernels.so")
    tool = made.folder / "nvidia-smi"
    tool.write_text(f"#!{sys.executable}\n{Path(nvidia_smi.__file__).read_text()}")
    tool.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def here(driver: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HowToMachine]:
    """A machine on which that driver is installed, with its device files."""
    needs("ip", "curl", "make", "ldconfig", "mknod")
    folder = tmp_path_factory.mktemp("gpu-server").resolve()
    with machine(folder, shared=[driver.folder], own_network=True) as found:
        made = HowToMachine(found)
        made.do(
            f"""
            echo {driver.folder} > /etc/ld.so.conf.d/nvidia.conf && ldconfig
            ln -s {driver.folder}/nvidia-smi /usr/bin/nvidia-smi
            for name in nvidiactl nvidia-uvm nvidia0 nvidia1; do mknod -m 666 /dev/$name c 1 3; done
            """
        )
        made.do("cat >> provisioning/gpu/check/probes/base.py", given=SMALL)
        made.do("cat > /run/sign-in.sh", given=SIGN_IN)
        made.do("cat > /run/begin.py", given=BEGIN)
        made.fresh()
        yield made


def page(here: HowToMachine, path: str) -> str:
    return here.do(f"curl -s -m 20 -b /run/jar localhost:8000{path}")


def devices(here: HowToMachine, secret: str) -> dict[str, dict[str, Any]]:
    """All devices by their UUID."""
    found = ask(here, secret, "GET", "devices?page_size=100")["results"]
    return {each["uuid"]: each for each in found}


def exit_code(here: HowToMachine, command: str) -> tuple[int, str]:
    """Exit code and output of a command that may fail."""
    said = here.do(f"{command.strip()} || echo ended with $?")
    code = re.search(r"^ended with (\d+)$", said, flags=re.MULTILINE)
    return int(code[1]) if code else 0, said


def test_guide_leads_from_the_driver_to_a_workspace_with_a_gpu(here: HowToMachine, driver: Machine) -> None:
    list_gpus, by_hand, simulated = blocks("gpu-server")
    shown = here.do(list_gpus).splitlines()
    assert shown == [f"GPU {number}: {MODEL} (UUID: {uuid})" for number, uuid in enumerate(GPUS)]

    # 2. They are on the page of all GPUs, and checked automatically.
    here.do("make up")
    assert f"2 × {MODEL}" in here.output()
    password = re.search(r"password: (\S+)", here.output())
    assert password
    secret = here.do(".venv/bin/python manage.py shell -v 0 < /run/begin.py").split()[0]
    known = devices(here, secret)
    assert set(known) == set(GPUS) and all(each["passed_at"] for each in known.values()), known
    assert {result["cause"] for result in ask(here, secret, "GET", "gpu-checks")["results"]} == {"new"}
    here.do(f"sh /run/sign-in.sh {password[1]}")
    shown_page = page(here, "/gpus/")
    assert shown_page.count('<a class="gpu free"') == len(GPUS) and "(simulated)" not in shown_page

    # 3. A manual check, and a broken GPU.
    code, said = exit_code(here, by_hand)
    assert code == EXIT_CODES["pass"], said
    assert all(f"{uuid}  standard  PASS" in said for uuid in GPUS), said
    driver.fault("uncorrected", 1)
    bad, good = GPUS
    code, said = exit_code(here, f"{by_hand.strip()} --uuid {bad}")
    assert code == EXIT_CODES["fail"] and f"{bad}  standard  FAIL" in said, said
    assert not devices(here, secret)[bad]["cordoned"]
    here.environ |= {"BERTH_URL": "http://localhost:8000", "BERTH_TOKEN": secret}
    code, said = exit_code(here, f".venv/bin/berth gpu check --device {bad}")
    assert code == EXIT_CODES["fail"], said
    out = devices(here, secret)[bad]
    assert (out["cordoned"], out["cordon_cause"], out["recovery"]) == (True, "check", "drain_and_reset")
    assert str(RECOVERY["drain_and_reset"]) in page(here, f"/gpus/devices/{out['id']}/")

    # 4. The pool's requirements and schedule.
    checks = ask(here, secret, "GET", "pools/this-machine/checks")
    assert checks["check_required"] and checks["scrub_required"], checks
    rules = {**checks, "check_every_hours": 24, "hand_out_max_age_hours": 12}
    assert ask(here, secret, "PUT", "pools/this-machine/checks", rules) == rules

    # 5. A flavor with a GPU, a quota, and a workspace.
    size = {
        "slug": "one-t4", "name": "One T4",
        "resources": {
            "cpu_milli": 100, "memory_mib": 256,
            "accelerators": {"count": 1, "model": MODEL, "memory_mib": 15_000},
        },
    }  # fmt: skip
    preview = ask(here, secret, "POST", "catalog/preview", {"flavor_draft": size})
    (fit,) = preview["pools"]
    assert (fit["devices_now"], fit["starts_now"]) == (1, 1), fit
    assert ask(here, secret, "POST", "flavors", size)["slug"] == "one-t4"
    quota = {"team": "default", "resource": "gpu", "quota": 1000}
    assert ask(here, secret, "POST", "quotas", quota)["quota"] == 1000
    body = {"template": "files", "flavor": "one-t4", "name": "first"}
    where = f"workspaces/{ask(here, secret, 'POST', 'workspaces', body)['id']}"
    comes_to(here, secret, where, "running")
    assert [device["uuid"] for device in ask(here, secret, "GET", where)["devices"]] == [good]

    # Without any GPU.
    here.do(simulated)
    added = [each for uuid, each in devices(here, secret).items() if uuid not in GPUS]
    assert len(added) == SIMULATED and all(each["simulated"] for each in added)
    assert ask(here, secret, "GET", "pools/simulated")["simulated"]
    shown_page = page(here, "/gpus/")
    assert shown_page.count('<a class="gpu ') == len(GPUS) + SIMULATED
    assert shown_page.count("(simulated)") == 1
