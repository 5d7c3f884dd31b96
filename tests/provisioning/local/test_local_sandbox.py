"""The sandbox: its argument vector, and what is visible inside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from local_support import ask

from provisioning.drivers.local import sandbox as module
from provisioning.drivers.local.environment import resolve
from provisioning.drivers.local.sandbox import SandboxPlan, bwrap_argv, hostname

PLAN = SandboxPlan(
    bwrap="/usr/bin/bwrap",
    system=(("/bin", "usr/bin"), ("/opt-lib", "")),
    readonly=("/srv/berth/environments/notebook", "/opt/python/lib"),
    python="/srv/berth/environments/notebook/bin/python3",
    agent="/app/agent",
    run="/srv/berth/local/ws-1/run",
    gateway="/srv/berth/local/.gateway",
    etc="/srv/berth/local/ws-1/etc",
    home="/srv/berth/homes/analysts/ada",
    user="ada",
    hostname="my-notebook",
    env={"BERTH_WORKSPACE": "ws-1", "A": "b"},
    masked=("/proc/kcore",),
    device_nodes=("/dev/nvidia0", "/dev/nvidiactl"),
    own_network=True,
)


def test_argument_vector_of_bubblewrap():
    etc = [word for path in module.ETC_SHARED for word in ("--ro-bind-try", path, path)]
    # fmt: off
    assert bwrap_argv(PLAN) == (
        "/usr/bin/bwrap",
        "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--disable-userns", "--unshare-net", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL",
        "--new-session", "--hostname", "my-notebook",
        "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--ro-bind", "/opt-lib", "/opt-lib",
        *etc,
        "--ro-bind", "/srv/berth/local/ws-1/etc/passwd", "/etc/passwd",
        "--ro-bind", "/srv/berth/local/ws-1/etc/group", "/etc/group",
        "--ro-bind", "/srv/berth/local/ws-1/etc/hosts", "/etc/hosts",
        "--ro-bind", "/srv/berth/local/ws-1/etc/resolv.conf", "/etc/resolv.conf",
        "--proc", "/proc", "--dev", "/dev",
        "--ro-bind", "/proc/sys", "/proc/sys", "--ro-bind-try", "/proc/sysrq-trigger", "/proc/sysrq-trigger",
        "--ro-bind-try", "/proc/bus", "/proc/bus", "--ro-bind-try", "/proc/fs", "/proc/fs",
        "--ro-bind-try", "/proc/irq", "/proc/irq", "--ro-bind", "/dev/null", "/proc/kcore",
        "--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/run",
        "--ro-bind-try", "/sys/devices/system", "/sys/devices/system",
        "--ro-bind-try", "/sys/bus/pci", "/sys/bus/pci",
        "--ro-bind-try", "/sys/devices", "/sys/devices",
        "--ro-bind-try", "/sys/module/nvidia", "/sys/module/nvidia",
        "--dev-bind", "/dev/nvidia0", "/dev/nvidia0", "--dev-bind", "/dev/nvidiactl", "/dev/nvidiactl",
        "--ro-bind", "/srv/berth/environments/notebook", "/srv/berth/environments/notebook",
        "--ro-bind", "/opt/python/lib", "/opt/python/lib",
        "--bind", "/srv/berth/homes/analysts/ada", "/home/ada",
        "--ro-bind", "/app/agent", "/run/berth/agent",
        "--bind", "/srv/berth/local/ws-1/run", "/run/berth/ws",
        "--ro-bind", "/srv/berth/local/.gateway", "/run/berth/node",
        "--chdir", "/home/ada", "--clearenv", "--setenv", "A", "b", "--setenv", "BERTH_WORKSPACE", "ws-1",
        "--", "/srv/berth/environments/notebook/bin/python3", "-I", "-S",
        "/run/berth/agent/agent.py", "/run/berth/ws/agent.json", "{app}",
    )
    # fmt: on


def test_sandbox_without_agent_does_not_show_its_files():
    assert not [word for word in bwrap_argv(replace(PLAN, agent="", command=("x",))) if "agent" in word]


def test_secret_folders_of_etc_are_not_shared():
    assert not {"/etc", "/etc/ssl", "/etc/pki", "/etc/shadow"} & set(module.ETC_SHARED)
    assert not any("private" in path for path in module.ETC_SHARED)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("My Notebook", "my-notebook"), ("ümläut", "ml-ut"), ("—", "workspace"), ("a" * 90, "a" * 40)],
)
def test_host_names_are_valid(name, expected):
    assert hostname(name) == expected


def test_environment_mounts_its_base_python_only(tmp_path):
    base = tmp_path / "someone"
    for folder in ("bin", "lib", "secrets"):
        (base / folder).mkdir(parents=True)
    (base / "bin" / "python3").touch()
    root = tmp_path / "environment"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python3").symlink_to(base / "bin" / "python3")
    (root / "pyvenv.cfg").write_text(f"home = {base}/bin\n")
    assert set(resolve(root).readonly) == {str(root), f"{base}/bin", f"{base}/lib"}


def test_workspace_sees_only_its_own_files_and_processes(make_pool, sandbox, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    pool = make_pool()
    (pool.home / "homes" / "analysts" / "eve").mkdir(parents=True)
    database = pool.home / "database" / "berth.sqlite3"
    database.parent.mkdir()
    database.write_text("secret")
    seen = pool.run(pool.spec())
    source = str(Path(__file__).parents[3] / "portal")
    hidden = [str(database), str(pool.home / "homes"), str(pool.home / "local"), source]
    hidden += ["/etc/shadow", "/etc/ssl/private", "/root/.ssh", "/var/lib"]
    for path in hidden:
        assert ask(seen, f"os.path.exists({path!r})") is False, path
    assert ask(seen, "os.listdir('/home')") == ["ada"]
    assert ask(seen, "dict(os.environ).get('DATABASE_URL')") is None
    assert ask(seen, "os.environ['HOME']") == "/home/ada"
    assert ask(seen, "os.getuid()") == 1000
    assert ask(seen, "os.uname().nodename") == "my-notebook"
    # Only its own processes: bubblewrap, the agent, its relay, the app.
    assert ask(seen, "sorted(p for p in os.listdir('/proc') if p.isdigit())[:2]") == ["1", "2"]
    assert ask(seen, "len([p for p in os.listdir('/proc') if p.isdigit()])") == 4
    files = "('/proc/%s/environ' % p for p in os.listdir('/proc') if p.isdigit())"
    everything = f"b''.join(open(path, 'rb').read() for path in {files})"
    assert ask(seen, f"b'postgresql' in {everything}") is False
    assert ask(seen, "open('/usr/berth-was-here', 'w')") in ("OSError", "PermissionError")
    assert ask(seen, "open('/etc/passwd').read().count('ada')") >= 2
    # Kernel settings: the workspace user may be root of the machine without capabilities.
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/kcore"):
        refused = ask(seen, f"open({path!r}, 'r+b').fileno() and None")
        assert refused in ("OSError", "PermissionError", "FileNotFoundError"), path
    assert ask(seen, "{'sda', 'vda', 'nvme0', 'kmsg', 'mem'} & set(os.listdir('/dev')) == set()") is True
    assert ask(seen, "open(os.environ['HOME'] + '/kept', 'w').write('x')") == 1
    assert (pool.home / "homes" / "analysts" / "ada" / "kept").read_text() == "x"
    assert (pool.home / "homes" / "analysts" / "ada").stat().st_mode & 0o077 == 0
    assert ask(seen, "os.environ['CUDA_VISIBLE_DEVICES']") == ""
    # JAX with CUDA packages prints a traceback if it finds no device.
    assert ask(seen, "os.environ['JAX_PLATFORMS']") == "cpu"
