"""Settings of a simulated pool: valid values, and refusals that name the setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioning.drivers.simulated import script
from provisioning.drivers.simulated.driver import SimulatedDriver
from provisioning.drivers.simulated.script import (
    KNOWN_KEYS,
    Script,
    Topology,
)
from provisioning.errors import Blame
from provisioning.simulation.settings import InvalidConfig, Selector, check_keys
from provisioning.types import PoolConfig


def test_default_is_one_fast_node_that_never_fails():
    assert Topology.parse({}) == Topology()
    assert Script.parse({}) == Script()


def test_values_are_parsed_from_form_texts():
    assert Topology.parse({"nodes": "100", "gpus": "8"}) == Topology(nodes=100, gpus=8)
    script = Script.parse({"start_delay_s": "1.5", "fail_starts": "0.25", "never_ready": "true"})
    assert script.start_delay_s == 1.5
    assert script.fail_starts == Selector(share=0.25)
    assert script.never_ready == Selector(share=1.0)


@pytest.mark.parametrize(
    ("model", "reported", "memory_mib"),
    [
        ("H100", "Simulated H100", 81_559),
        ("h200", "Simulated h200", 143_771),
        ("RTX 4090", "Simulated RTX 4090", 24_564),
        ("Simulated H100", "Simulated H100", 81_559),
        ("Abacus", "Simulated Abacus", 16_384),
    ],
)
def test_models_have_memory_and_a_simulated_mark(model, reported, memory_mib):
    topology = Topology.parse({"model": model})
    assert topology.reported_model == reported
    assert topology.gpu_memory_mib == memory_mib


def test_selector_is_a_share_a_flag_or_names():
    def parse(value):
        return Script.parse({"fail_starts": value}).fail_starts

    assert parse(0.5) == Selector(share=0.5)
    assert parse(True) == Selector(share=1.0)
    assert parse(False) == Selector()
    assert parse("one, two ,") == Selector(names=frozenset({"one", "two"}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nodes", 0),
        ("nodes", 1.5),
        ("nodes", "many"),
        ("nodes", True),
        ("nodes", 10**9),
        ("gpus", -1),
        ("gpus", float("inf")),
        ("model", ""),
        ("model", 5),
        ("cpu_milli", 0),
        ("memory_mib", "1e3"),
        ("seed", "x"),
        ("start_delay_s", -1),
        ("start_delay_s", float("nan")),
        ("stop_delay_s", "soon"),
        ("stop_delay_s", True),
        ("call_delay_ms", 10**9),
        ("unavailable", "perhaps"),
        ("fail_starts", 2),
        ("fail_starts", -0.5),
        ("lose_replies", "1.5"),
        ("crash_after_s", -3),
        ("crash_exit_code", 1000),
        ("vanish_nodes", 3),
        ("state", 3),
        ("state", "  "),
    ],
)
def test_invalid_setting_is_named(key, value):
    with pytest.raises(InvalidConfig, match=f"“{key}”") as caught:
        SimulatedDriver(PoolConfig("trial", "simulated", {key: value}))
    assert caught.value.blame is Blame.OPERATOR
    assert not caught.value.retryable


def test_unknown_setting_is_named():
    with pytest.raises(InvalidConfig, match="“start_dealy_s”"):
        SimulatedDriver(PoolConfig("trial", "simulated", {"start_dealy_s": 3}))


@pytest.mark.parametrize("slug", ["", "../elsewhere", "a/b", ".."])
def test_slug_cannot_leave_the_state_folder(slug):
    with pytest.raises(InvalidConfig, match="slug"):
        SimulatedDriver(PoolConfig(slug, "simulated", {}))


def test_state_is_kept_under_berth_home(monkeypatch, tmp_path):
    monkeypatch.setenv("BERTH_HOME", str(tmp_path))
    SimulatedDriver(PoolConfig("lab", "simulated", {})).inventory()
    assert (tmp_path / "simulated" / "lab" / "state.sqlite3").exists()


def test_creating_a_driver_writes_no_files(tmp_path):
    SimulatedDriver(PoolConfig("lab", "simulated", {"state": str(tmp_path / "state")}))
    assert not (tmp_path / "state").exists()


def test_every_setting_is_documented():
    check_keys(dict.fromkeys(KNOWN_KEYS), KNOWN_KEYS)
    assert all(f"`{key}`" in (script.__doc__ or "") for key in KNOWN_KEYS)


@given(share=st.floats(0, 1), seed=st.integers(-5, 5))
def test_failure_shares_are_reproducible_and_about_right(share, seed):
    def picked():
        return [
            Selector(share=share).selects(seed=seed, kind="k", name="n", external_name=f"ws-{i}", call=1)
            for i in range(400)
        ]

    assert picked() == picked()
    assert abs(sum(picked()) / 400 - share) < 0.15


@given(
    config=st.dictionaries(
        st.sampled_from(sorted(KNOWN_KEYS)),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text("ab 01.,-/_", max_size=8)),
    )
)
def test_any_settings_give_a_driver_or_name_the_invalid_setting(config):
    try:
        SimulatedDriver(PoolConfig("trial", "simulated", config))
    except InvalidConfig as error:
        assert any(f"“{key}”" in error.message for key in config)
