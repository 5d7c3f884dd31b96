"""Project quotas of homes with a fake kernel; `tests/kernel` uses real ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from local_support import Pool

from provisioning.drivers.local import home_quota, project_quota
from provisioning.drivers.local.home_quota import HomeQuotas, QuotaRecord, files_of
from provisioning.drivers.local.project_quota import ProjectUse
from provisioning.node.measuring import HomeMeasurer
from provisioning.types import LimitedResource

NOTHING = ProjectUse(0, 0, 0, 0)


@dataclass
class Kernel:
    """A fake kernel: the project of each file by inode, with limit and usage per project."""

    projects: dict[int, int] = field(default_factory=dict)
    uses: dict[int, ProjectUse] = field(default_factory=dict)
    given: list[int] = field(default_factory=list)

    def project_of(self, file: int) -> int:
        return self.projects.get(os.fstat(file).st_ino, 0)

    def assign(self, file: int, project: int, *, folder: bool) -> bool:
        inode = os.fstat(file).st_ino
        changed = self.projects.get(inode, 0) != project
        self.projects[inode] = project
        self.given += [inode] * changed
        return changed

    def use_of(self, folder: int, project: int) -> ProjectUse:
        return self.uses.get(project, NOTHING)

    def limit(self, folder: int, project: int, *, limit_bytes: int, limit_files: int) -> None:
        self.uses[project] = replace(
            self.uses.get(project, NOTHING), limit_bytes=limit_bytes, limit_files=limit_files
        )


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    for name in ("project_of", "assign", "use_of", "limit"):
        monkeypatch.setattr(project_quota, name, getattr(made, name))
    monkeypatch.setattr(HomeQuotas, "are_supported", lambda _: True)
    return made


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    for home in ("a/one", "a/two"):
        (tmp_path / "homes" / home).mkdir(parents=True)
    return tmp_path / "homes"


@pytest.fixture
def quotas(tmp_path: Path, homes: Path, kernel: Kernel) -> HomeQuotas:
    made = HomeQuotas(tmp_path / "local", homes)
    made.store_limit(1000)
    return made


def enforce(quotas: HomeQuotas, *homes: str) -> None:
    list(quotas.enforce(homes))


def quota_record(quotas: HomeQuotas, home: str) -> QuotaRecord:
    found = quotas.limit_home(home)
    assert found is not None
    return found


def test_each_home_has_its_own_lasting_project_id(quotas, homes, kernel):
    one, two = quota_record(quotas, "a/one").project, quota_record(quotas, "a/two").project
    assert one != two and {one, two} <= set(home_quota.PROJECT_IDS)
    again = HomeQuotas(quotas.folder.parent, homes)
    assert (quota_record(again, "a/one").project, quota_record(again, "a/two").project) == (one, two)
    assert kernel.projects[(homes / "a/one").stat().st_ino] == one
    assert kernel.uses[one].limit_bytes == 1100 << 20, "a tenth more than the measured limit"
    assert kernel.uses[one].limit_files == quotas.most_files() * 110 // 100 >= home_quota.MIN_FILES


def test_project_ids_of_others_are_not_used(quotas, kernel, tmp_path, monkeypatch):
    first, second, third, *_ = home_quota.PROJECT_IDS
    (tmp_path / "projid").write_text(f"# mine\nbackups:{first}\n")
    monkeypatch.setattr(home_quota, "ADMINISTRATORS", (tmp_path / "projid", tmp_path / "none"))
    kernel.uses[second] = ProjectUse(0, 4096, 0, 1)
    assert quota_record(quotas, "a/one").project == third
    assert kernel.uses[second] == ProjectUse(0, 4096, 0, 1)


def test_damaged_record_is_rebuilt(quotas):
    before = quota_record(quotas, "a/one").project
    (quotas.folder / "a:one").write_text("{")
    after = quota_record(quotas, "a/one").project
    assert after != before, "the kernel counts for that one still"
    assert json.loads((quotas.folder / "a:one").read_text())["project"] == after


def test_no_limit_sets_no_quota_and_removes_an_earlier_one(tmp_path, homes, kernel):
    quotas = HomeQuotas(tmp_path / "local", homes)
    quotas.store_limit(0)
    assert quotas.limit_home("a/one") is None and not quotas.folder.exists()
    quotas.store_limit(1000)
    project = quota_record(quotas, "a/one").project
    quotas.store_limit(0)
    assert quota_record(quotas, "a/one").project == project and kernel.uses[project] == NOTHING


def test_only_existing_content_of_the_home_gets_the_project_id(quotas, homes, kernel, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("x")
    home = homes / "a/one"
    (home / "deep/er").mkdir(parents=True)
    (home / "deep/er/file").write_text("x")
    (home / "link").symlink_to(outside)
    (home / "folder").symlink_to(tmp_path)
    os.mkfifo(home / "pipe")
    enforce(quotas, "a/one")
    project = quotas.limit_home("a/one").project
    inside = [home, home / "deep", home / "deep/er", home / "deep/er/file"]
    assert {path.stat().st_ino for path in inside} == {
        inode for inode, given in kernel.projects.items() if given == project
    }
    before = len(kernel.given)
    enforce(quotas, "a/one")
    assert len(kernel.given) == before and quotas.limit_home("a/one").folder_inode == home.stat().st_ino


def test_killed_operation_resumes(quotas, homes, kernel):
    home = homes / "a/one"
    files = [home / f"file-{number}" for number in range(500)]
    for path in files:
        path.write_text("x")
    steps = quotas.enforce(["a/one"])
    next(steps)
    steps.close()
    assert 1 < len(kernel.given) < len(files) and quota_record(quotas, "a/one").folder_inode == 0
    enforce(HomeQuotas(quotas.folder.parent, homes), "a/one")
    assert {path.stat().st_ino for path in files} <= set(kernel.given)
    assert len(kernel.given) == len(set(kernel.given)), "nothing was given twice"


def test_another_folder_replacing_the_home_gets_the_project_id(quotas, homes, kernel):
    enforce(quotas, "a/one")
    project = quota_record(quotas, "a/one").project
    (homes / "a/.restored").mkdir()
    (homes / "a/.restored/file").write_text("x")
    (homes / "a/one").rename(homes / "a/.old")
    (homes / "a/.restored").rename(homes / "a/one")
    enforce(quotas, "a/one")
    assert kernel.projects[(homes / "a/one/file").stat().st_ino] == project


def test_project_id_is_released_when_the_home_is_fully_deleted(quotas, homes, kernel):
    project = quota_record(quotas, "a/one").project
    (homes / "a/one").rename(homes / "a/.deleting-one")
    kernel.uses[project] = replace(kernel.uses[project], used_files=3)
    enforce(quotas, "a/two")
    assert (quotas.folder / "a:one").exists(), "some of it is there yet"
    kernel.uses[project] = replace(kernel.uses[project], used_files=0)
    enforce(quotas, "a/two")
    assert not (quotas.folder / "a:one").exists() and kernel.uses[project] == NOTHING
    assert (quotas.folder / "a:two").exists()


@pytest.mark.parametrize(
    ("limit_mib", "total_mib", "total_files", "expected"),
    [
        (1024, 102400, 6_400_000, 64_000),
        (10, 102400, 6_400_000, home_quota.MIN_FILES),
        (204800, 102400, 6_400_000, 6_400_000),
        (1024, 0, 0, home_quota.MIN_FILES),
    ],
)
def test_file_limit_is_proportional_to_the_disk_share(limit_mib, total_mib, total_files, expected):
    assert files_of(limit_mib, total_mib << 20, total_files) == expected


def test_new_home_is_limited_before_it_is_used(make_pool: Callable[..., Pool], kernel: Kernel) -> None:
    pool = make_pool(home_limit_mib=1000)
    pool.driver.prepare_host()
    pool.run(pool.spec())
    project = pool.driver.quotas.limit_home("analysts/ada").project
    assert kernel.projects[(pool.home / "homes/analysts/ada").stat().st_ino] == project
    (node,) = pool.driver.inventory().nodes
    assert node.facts["home_hold"] == "project_quota" and LimitedResource.DISK in node.limited


def test_measuring_a_home_sets_its_limit(make_pool: Callable[..., Pool], kernel: Kernel) -> None:
    pool = make_pool(home_limit_mib=1000)
    home = pool.home / "homes/a/one"
    home.mkdir(parents=True)
    pool.driver.inventory()
    HomeMeasurer(pool.driver, lambda _: None).round(0.0)
    assert pool.driver.quotas.limit_home("a/one").folder_inode == home.stat().st_ino


def test_file_system_without_project_quotas_changes_nothing(
    make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_quota, "is_enforced", lambda _: False)
    pool = make_pool(home_limit_mib=1000)
    (pool.home / "homes/a/one").mkdir(parents=True)
    (node,) = pool.driver.inventory().nodes
    HomeMeasurer(pool.driver, lambda _: None).round(0.0)
    assert node.facts["home_hold"] == "measured" and LimitedResource.DISK in node.limited
    assert [path.name for path in pool.driver.quotas.folder.iterdir()] == [".limit"], "no home has a number"


def test_failed_quota_call_is_retried(
    make_pool: Callable[..., Pool], kernel: Kernel, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    told: list[str] = []
    pool = make_pool(home_limit_mib=1000)
    (pool.home / "homes/a/one").mkdir(parents=True)
    pool.driver.inventory()

    def broken(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(project_quota, "limit", broken)
        measuring = HomeMeasurer(pool.driver, lambda found: told.extend(each.home for each in found))
        measuring.round(0.0)
    assert told == ["a/one"], "they are measured all the same"
    assert "could not set quotas of homes" in caplog.text
    measuring.round(10.0)
    assert pool.driver.quotas.limit_home("a/one").folder_inode


def test_quota_structure_of_the_kernel_is_parsed(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        try:
            known = project_quota.is_enforced(file.fileno())
        except OSError as error:
            pytest.fail(f"a file system without quotas is no error: {error}")
    assert known in (True, False)
    assert (project_quota._USE.size, project_quota._FLAGS.size) == (72, 28)
