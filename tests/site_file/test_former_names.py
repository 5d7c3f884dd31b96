"""Fields of the site file with a better name: read by both, written by the new one."""

from __future__ import annotations

from typing import Any

import pytest

from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput
from portal.fleet.inventory.models import Pool
from portal.site_file import applying, exporting

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
FILE = """\
berth: 1
pools:
  lab:
    driver: local
    check_every_hours: 24
    hand_out_max_age_hours: 12
flavors:
  small:
    cpu_milli: 1000
    memory_mib: 2048
    default_lifetime_hours: 8
    max_lifetime_hours: null
templates:
  shell:
    program: bash
    argv: [bash, "{port}"]
    default_lifetime_hours: 0
    max_lifetime_hours: 72
"""
FORMER = FILE.replace("_hours:", "_h:")


@pytest.mark.parametrize("text", [FILE, FORMER])
def test_either_name_is_read(ada: Any, text: str) -> None:
    applying.apply(actor=ada, text=text)
    pool = Pool.objects.get(slug="lab")
    assert (pool.check_every_h, pool.hand_out_max_age_h) == (24, 12)
    flavor, template = Flavor.objects.get(slug="small"), Template.objects.get(slug="shell")
    assert (flavor.default_lifetime_h, flavor.max_lifetime_h) == (8, None)
    assert (template.default_lifetime_h, template.max_lifetime_h) == (0, 72)
    for again in (FILE, FORMER):
        assert applying.compare(actor=ada, text=again) == []
    (step,) = applying.compare(actor=ada, text=text.replace("72", "71"))
    assert step.words == ["max_lifetime_hours: 72 → 71"]
    assert applying.apply(actor=ada, text=text.replace("72", "71")) == [step]
    assert Template.objects.get(slug="shell").max_lifetime_h == 71


def test_an_export_has_the_new_name_alone(ada: Any) -> None:
    applying.apply(actor=ada, text=FORMER)
    site = exporting.export(actor=ada)
    for section, slug in (("pools", "lab"), ("flavors", "small"), ("templates", "shell")):
        names = site[section][slug]
        assert sum(name.endswith("_hours") for name in names) == 2
        assert not [name for name in names if name.endswith("_h")]


@pytest.mark.parametrize(
    ("name", "line", "where", "value", "other"),
    [
        ("check_every", 5, "pools.lab", 24, 25),
        ("max_lifetime", 12, "flavors.small", "null", 0),
        ("default_lifetime", 17, "templates.shell", 0, "null"),
    ],
)
def test_both_are_read_where_they_say_the_same(
    ada: Any, name: str, line: int, where: str, value: Any, other: Any
) -> None:
    written = f"    {name}_hours: {value}\n"
    assert FILE.split("\n").index(written.strip("\n")) == line - 1
    both = FILE.replace(written, f"{written}    {name}_h: {value}\n")
    applying.apply(actor=ada, text=both)
    assert applying.compare(actor=ada, text=FILE) == []
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text=FILE.replace(written, f"{written}    {name}_h: {other}\n"))
    assert refused.value.reason.code == "file_names_differ"
    assert refused.value.reason.params == {
        "line": line + 1,
        "where": where,
        "old": f"{name}_h",
        "new": f"{name}_hours",
    }
    assert list(refused.value.field_errors) == ["yaml"]


@pytest.mark.parametrize("text", [FILE, FORMER])
def test_what_a_room_refuses_is_said_with_the_line_of_the_name_that_is_there(ada: Any, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text=text.replace("24", "9000"))
    assert (refused.value.reason.code, refused.value.reason.params["line"]) == ("step_refused", 5)
    assert "check_every_hours" in refused.value.message
    assert not Pool.objects.filter(slug="lab").exists()
