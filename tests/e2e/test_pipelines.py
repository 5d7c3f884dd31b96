"""The examples of pipelines, step by step, against a whole Berth.

This machine has no GPU: the variables for the flavor and the check say so. Nothing else of them is changed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioning.service.environ import ROOT
from tests.e2e import pipelines
from tests.e2e.pipelines import Job, Outcome
from tests.instance import Api, Berth, eventually

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("e2e")]
EXAMPLES = ROOT / "examples" / "ci"
JOBS = {
    "gitlab": lambda: pipelines.gitlab(EXAMPLES / "gitlab-ci.yml"),
    "github": lambda: pipelines.github(EXAMPLES / "github-actions.yml"),
}


@pytest.fixture
def pipeline(berth: Berth, tmp_path: Path) -> Callable[..., Outcome]:
    shutil.copy(EXAMPLES / "train.ipynb", tmp_path)

    def run(name: str, *, cancel: Callable[[], Any] | None = None, **given: str) -> Outcome:
        job: Job = JOBS[name]()
        variables = {
            "BERTH_URL": berth.url,
            "BERTH_TOKEN": berth.tokens["ada"],
            "HOME": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "FLAVOR": "cpu-small",
            "GPU_CHECK": "python3 -c print('checked')",
            "CI": "true",
        }
        return pipelines.run(job, tmp_path, {**variables, **given}, cancel=cancel)

    return run


def nothing_is_left(ada: Api, berth: Berth) -> bool:
    left = [row for row in ada.json("GET", "workspaces")["results"] if row["name"].startswith("ci-")]
    return not left and not list((berth.home / "homes" / "lab" / "ada").glob("ci-*.ipynb"))


@pytest.mark.parametrize("name", JOBS)
def test_a_pipeline_from_start_to_result(
    pipeline: Callable[..., Outcome], ada: Api, berth: Berth, tmp_path: Path, name: str
) -> None:
    outcome = pipeline(name)
    assert outcome.passed, outcome
    assert "checked" in outcome.output
    (cell,) = json.loads((tmp_path / "result.ipynb").read_text())["cells"]
    assert cell["outputs"][0]["text"] == ["weight 3.000\n"]
    assert nothing_is_left(ada, berth)


def test_a_check_that_fails_ends_it(
    pipeline: Callable[..., Outcome], ada: Api, berth: Berth, tmp_path: Path
) -> None:
    outcome = pipeline("gitlab", GPU_CHECK="nvidia-smi-that-is-not-here -L")
    assert outcome.codes == [127, 0], outcome
    assert "there is no such command" in outcome.output
    assert not (tmp_path / "result.ipynb").exists()
    assert nothing_is_left(ada, berth)


def test_one_that_is_cancelled_while_it_starts_leaves_nothing(
    pipeline: Callable[..., Outcome], ada: Api, berth: Berth
) -> None:
    def begun() -> None:
        eventually(lambda: ada.json("GET", "workspaces")["results"] or None, limit_s=120, what="it is made")

    outcome = pipeline("github", cancel=begun)
    assert not outcome.passed, outcome
    assert nothing_is_left(ada, berth)


def test_one_that_is_cancelled_while_it_works_leaves_nothing(
    pipeline: Callable[..., Outcome], ada: Api, berth: Berth, tmp_path: Path
) -> None:
    train = tmp_path / "train.ipynb"
    begun = berth.home / "homes" / "lab" / "ada" / "begun.txt"
    begun.unlink(missing_ok=True)
    long = "open('begun.txt', 'w').close(); import time; time.sleep(600) #"
    train.write_text(train.read_text().replace("# Stands", long))
    outcome = pipeline("gitlab", cancel=lambda: eventually(begun.exists, limit_s=180, what="it works"))
    assert outcome.codes[0] != 0 and outcome.codes[1] == 0, outcome
    assert nothing_is_left(ada, berth)
