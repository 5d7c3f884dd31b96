"""A package index in a folder, with wheels and source distributions made by the test."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioning.drivers.local import cgroups, isolation
from provisioning.drivers.local.isolation import SandboxProbe
from provisioning.environment_builds.build import Build, BuildMachine
from provisioning.environment_messages import BuildStage, EnvironmentBuild, SourceKind
from provisioning.environments.store import EnvironmentStamp, Store

PYTHON = f"3.{os.sys.version_info.minor}"  # type: ignore[attr-defined]

# A PEP 517 backend without dependencies: its `build_wheel` runs `attack` first.
BACKEND = """
import base64, hashlib, os, zipfile
{attack}
def get_requires_for_build_wheel(config_settings=None):
    return []
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    attack()
    name = "{name}-{version}-py3-none-any.whl"
    info = "{name}-{version}.dist-info"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as archive:
        archive.writestr("{name}.py", "said = " + repr(SAID))
        archive.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        archive.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "/RECORD", "{name}.py,,\\n")
    return name
"""


@dataclass
class PackageFolder:
    """A simple index at `url`."""

    folder: Path
    names: set[str] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"file://{self.folder}/simple"

    def wheel(
        self,
        name: str,
        version: str = "1.0",
        *,
        files: Mapping[str, str | bytes] | None = None,
        needs: str = "",
    ) -> Path:
        """Create a wheel with these files and a RECORD."""
        info = f"{name}-{version}.dist-info"
        content: dict[str, str | bytes] = {f"{name}.py": f"version = {version!r}\n", **(files or {})}
        requires = f"Requires-Dist: {needs}\n" if needs else ""
        content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        record = ""
        for path, text in content.items():
            data = text.encode() if isinstance(text, str) else text
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(data)}\n"
        content[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
        path = self._page(name) / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for member, text in content.items():
                entry = zipfile.ZipInfo(member)
                runs = text.startswith("#!") if isinstance(text, str) else False
                entry.external_attr = (0o100755 if runs else 0o100644) << 16
                archive.writestr(entry, text)
        return self._listed(name, path)

    def source(self, name: str, attack: str, version: str = "1.0") -> Path:
        """Create a source distribution; `attack` is Python code that defines `attack()` and `SAID`."""
        files = {
            "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
            "pyproject.toml": "[build-system]\nrequires = []\n"
            'build-backend = "backend"\nbackend-path = ["."]\n'
            f'[project]\nname = "{name}"\nversion = "{version}"\n',
            "backend.py": BACKEND.format(attack=attack, name=name, version=version),
        }
        path = self._page(name) / f"{name}-{version}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for member, text in files.items():
                entry = tarfile.TarInfo(f"{name}-{version}/{member}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
        return self._listed(name, path)

    def _page(self, name: str) -> Path:
        page = self.folder / "simple" / name.replace("_", "-")
        page.mkdir(parents=True, exist_ok=True)
        return page

    def _listed(self, name: str, path: Path) -> Path:
        page = self._page(name)
        files = [distribution for distribution in sorted(page.iterdir()) if distribution.name != "index.html"]
        links = "".join(
            f'<a href="{file.name}#sha256={hashlib.sha256(file.read_bytes()).hexdigest()}">{file.name}</a>\n'
            for file in files
        )
        (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
        return path


@dataclass
class Bench:
    """Builds in a temporary folder, with their messages."""

    store: Store
    machine: BuildMachine
    said: list[str] = field(default_factory=list)
    stages: list[BuildStage] = field(default_factory=list)

    def build(
        self, source: str, *, cancelled: Callable[[], bool] = lambda: False, **changes: Any
    ) -> EnvironmentStamp:
        """Build the environment. Raises `BuildError`."""

        def report(stage: BuildStage, done: int, total: int) -> None:
            assert 0 <= done <= max(total, 0)
            if stage not in self.stages[-1:]:
                self.stages.append(stage)

        build = Build(
            command(source, **changes),
            self.store,
            self.machine,
            report=report,
            write=self.said.append,
            cancelled=cancelled,
        )
        return build.run()


def command(source: str, **changes: Any) -> EnvironmentBuild:
    fields: dict[str, Any] = {
        "build": "b1", "lease": "l1", "python": PYTHON, "source_kind": SourceKind.PACKAGES,
        "expires_at": time.time() + 60, "deadline_s": 120, "disk_limit_mib": 200, "source": source,
    } | changes  # fmt: skip
    return EnvironmentBuild(**fields)


def machine(folder: Path, *, sandbox: bool = True) -> BuildMachine:
    probe = isolation.probe() if sandbox else SandboxProbe("", reason="None here.")
    return BuildMachine(probe, cgroups.detect(f"test{os.getpid()}"), folder)
