"""Package, planes and changelog have one version."""

from __future__ import annotations

import re

from portal.cli.version import version
from provisioning.service.environ import ROOT
from provisioning.version import VERSION


def test_package_planes_and_changelog_have_one_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    entries = re.findall(r"^## (\S+), (?:unreleased|\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)
    assert version() == VERSION == entries[0]
