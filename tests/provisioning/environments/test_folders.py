"""Preinstalled environments on a node: named by its setting, read without running them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioning import messages
from provisioning.drivers.local import environment
from provisioning.drivers.local.driver import LocalDriver
from provisioning.environment_messages import BuildFailure, EnvironmentBuild, Package, SourceKind
from provisioning.environments import folders
from provisioning.environments.folders import Folders, digest_of_folder
from provisioning.environments.store import Store
from provisioning.node import environment_tasks
from provisioning.types import PoolConfig


def folder(place: Path, *packages: str, python: str = "3.11", programs: tuple[str, ...] = ()) -> Path:
    """Create a folder as left by conda or venv, as far as it is read; its Python cannot be run."""
    site = place / "lib" / f"python{python}" / "site-packages"
    site.mkdir(parents=True)
    (place / "bin").mkdir()
    for name in ("python3", *programs):
        (place / "bin" / name).write_text("#!/bin/false\n")
        (place / "bin" / name).chmod(0o755)
    for package in packages:
        name, _, version = package.partition("==")
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: x\n"
        )
    place.chmod(0o755)
    return place


def names(setting: str, *never: Path) -> list[str]:
    return folders.named_folders({folders.VARIABLE: setting}, never=never)


def test_only_safe_folders_named_by_the_setting_are_used(tmp_path):
    envs = tmp_path / "envs"
    for name in ("ml", "nlp", "open"):
        folder(envs / name)
    (envs / "open").chmod(0o777)
    (envs / "link").symlink_to("/etc")
    (envs / "file").write_text("")
    ours = tmp_path / "berth" / "home"
    folder(ours / "homes" / "ada" / "env")
    found = [f"{envs}/ml", f"{envs}/nlp"]
    assert names(f"{envs}/*") == found
    assert names(f"{envs}/ml {envs}/*/ {envs}/gone") == found
    assert names("") == names("relative/*") == names(f"{envs}/../envs/*") == []
    assert names(f"{ours}/homes/ada/*", ours) == names(f"{tmp_path}/berth", ours) == []


@pytest.mark.parametrize("path", ["", "/", "x", "/a//b", "/a/../b", "/a b", "/a\nb", "/" + "a" * 200, "/a/"])
def test_unsafe_paths_are_refused(path):
    assert not folders.is_plain(path)


def test_environment_contents_are_read_without_running_it(tmp_path):
    place = folder(tmp_path / "ml", "numpy==2.1.0", "Torch==2.5+cu124", programs=("jupyter-lab", "bad name"))
    (place / "conda-meta").mkdir()
    (place / "conda-meta" / "python-3.11.7-h955ad1f_0.json").write_text("{}")
    odd = place / "lib" / "python3.11" / "site-packages" / "odd-1.dist-info"
    odd.mkdir()
    (odd / "METADATA").symlink_to("/etc/passwd")
    found = folders.read(str(place))
    assert found is not None
    assert (found.python, found.python_version) == ("3.11", "3.11.7")
    assert found.programs == ("jupyter-lab", "python3")
    assert found.packages == (Package("numpy", "2.1.0"), Package("Torch", "2.5+cu124"))
    other = folder(tmp_path / "other", "torch==2.5+cu124", "numpy==2.1.0")
    assert folders.read(str(other)).fingerprint == found.fingerprint


def test_folder_without_a_supported_python_is_ignored(tmp_path):
    assert folders.read(str(folder(tmp_path / "old", python="3.9"))) is None
    (tmp_path / "empty").mkdir()
    assert folders.read(str(tmp_path / "empty")) is None
    broken = folder(tmp_path / "broken")
    (broken / "bin" / "python3").unlink()
    assert folders.read(str(broken)) is None


def test_store_lists_preinstalled_folder_and_never_removes_it(tmp_path):
    place = folder(tmp_path / "ml", "numpy==2.1.0", "torch==2.5+cu124", programs=("marimo",))
    named = [str(place)]
    store = Store(tmp_path / "environments", Folders(lambda: named))
    digest = digest_of_folder(str(place))
    (held,) = store.environments()
    assert (held.digest, held.folder, held.python, held.package_count) == (digest, str(place), "3.11", 2)
    with store.using(digest) as stamp:
        assert stamp is not None and stamp.folder and stamp.cuda == "12.4"
    found = environment.from_stamp(stamp)
    assert (
        found.readonly[0] == str(place) and found.python == f"{place}/bin/python3" and not found.preloadable
    )
    assert store.remove(digest)
    store.prepare()
    store.sweep()
    assert (place / "bin" / "python3").exists()
    named.clear()
    assert store.find(digest) is None and store.environments() == ()


def test_folder_is_read_again_after_an_installation(tmp_path):
    place = folder(tmp_path / "ml", "numpy==2.1.0")
    found = Folders(lambda: [str(place)])
    assert [len(each.packages) for each in found.all()] == [1]
    info = place / "lib" / "python3.11" / "site-packages" / "six-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: six\nVersion: 1\n")
    os.utime(info.parent, ns=(1, 1))
    assert [len(each.packages) for each in found.all()] == [2]


def test_node_answers_only_for_folders_named_by_its_setting(tmp_path, monkeypatch):
    place = folder(tmp_path / "envs" / "ml", "numpy==2.1.0")
    monkeypatch.setenv("BERTH_HOME", str(tmp_path / "berth"))
    monkeypatch.setattr(environment_tasks, "local_driver", lambda: LocalDriver(PoolConfig("local", "local")))

    def answer(path: Path) -> environment_tasks.EnvironmentBuilt:
        command = messages.load(
            messages.dump(
                EnvironmentBuild(
                    "b", "l", "3.11", SourceKind.FOLDER, 0.0, 60, 100, digest_of_folder(str(path)), str(path)
                )
            ),
            EnvironmentBuild,
        )
        return environment_tasks._build(command, environment_tasks.BuildProgress(command))

    refused = answer(place)
    assert refused.failure is not None and refused.failure.code == BuildFailure.NO_SUCH_FOLDER
    monkeypatch.setenv(folders.VARIABLE, f"{tmp_path}/envs/*")
    said = answer(place)
    assert said.failure is None
    assert (said.digest, said.python_version, said.packages) == (
        digest_of_folder(str(place)),
        "3.11",
        (Package("numpy", "2.1.0"),),
    )
    assert answer(Path("/etc")).failure is not None
