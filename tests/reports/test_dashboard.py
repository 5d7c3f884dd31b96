"""The dashboard uses exported metrics only."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from portal.reports.metrics import exposition_name, families
from provisioning.gpu import dcgm_names

DASHBOARD = Path(__file__).parents[2] / "docs/grafana/berth.json"


@pytest.mark.django_db
def test_every_dashboard_query_uses_an_exported_metric():
    known = {exposition_name(family) for family in families()} | set(dcgm_names.help_texts())
    board = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [each["definition"] for each in board["templating"]["list"] if "definition" in each]
    names = {name for text in asked for name in re.findall(r"\b(?:berth|DCGM)_\w+", text)}
    names = {name.removesuffix("_bucket") for name in names}
    assert names <= known, names - known
    assert {name for name in known if name.startswith("berth_")} <= names, "nothing is told in vain"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) and all(panel["title"] for panel in board["panels"])
