"""Pressure values of the kernel, reported unchanged or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioning.drivers.local import pressure

TOLD = """some avg10=53.78 avg60={} avg300=28.38 total=35044381526
full avg10=0.00 avg60=99.00 avg300=0.00 total=0
"""


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ("43.00", 43.0), ("0.00", 0.0), ("0.06", 0.1), ("100.00", 100.0), ("7", 7.0),
        ("", None), ("-1.00", None), ("nan", None), ("1e9", None),
    ],
)  # fmt: skip
def test_one_minute_average_is_read(tmp_path, told, read):
    (tmp_path / "cpu").write_text(TOLD.format(told))
    assert pressure.read_pressure(tmp_path) == {"cpu": read, "memory": None, "io": None}


def test_missing_and_unreadable_pressure_files_give_none(tmp_path):
    (tmp_path / "io").mkdir()
    nothing = dict.fromkeys(pressure.RESOURCES)
    assert pressure.read_pressure(tmp_path) == pressure.read_pressure(tmp_path / "none") == nothing


@given(st.binary(max_size=200))
def test_any_file_content_gives_a_percentage_or_none(tmp_path_factory, told):
    folder = tmp_path_factory.getbasetemp() / "pressure"
    folder.mkdir(exist_ok=True)
    (folder / "memory").write_bytes(told)
    read = pressure.read_pressure(folder)["memory"]
    assert read is None or 0 <= read <= 100
