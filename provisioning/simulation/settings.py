"""Settings of simulated pools: values shared by their drivers, and typed access to a configuration."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.errors import Blame, ProvisioningError
from provisioning.types import JsonScalar, PoolConfig

Settings = Mapping[str, JsonScalar]
MAX_NODES = 10_000
MAX_GPUS = 64
MAX_SECONDS = 30 * 86_400
MAX_CALL_DELAY_MS = 60_000
MAX_MODEL_LENGTH = 60
UNKNOWN_MODEL_MEMORY_MIB = 16_384
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

# As reported by NVML and its equivalents.
MODEL_MEMORY_MIB: dict[str, int] = {
    "A10": 23_028,
    "A100": 81_920,
    "A100-40GB": 40_960,
    "A100-80GB": 81_920,
    "B200": 183_359,
    "B300": 275_040,
    "GB200": 189_471,
    "GH200": 97_871,
    "H100": 81_559,
    "H100-NVL": 95_830,
    "H200": 143_771,
    "L4": 23_034,
    "L40S": 46_068,
    "MI300X": 196_592,
    "RTX-4090": 24_564,
    "T4": 15_360,
    "V100": 16_384,
    "V100-32GB": 32_768,
}


class InvalidConfig(ProvisioningError):
    """Invalid settings of a pool; the message names the setting."""

    code = "invalid_config"
    retryable = False
    blame = Blame.OPERATOR


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects workspaces by share or by name."""

    share: float = 0.0
    names: frozenset[str] = frozenset()

    def selects(self, *, seed: int, kind: str, name: str, external_name: str, call: int) -> bool:
        """Return whether call number `call` for the workspace is selected."""
        if self.names:
            return name in self.names or external_name in self.names
        if self.share <= 0:
            return False
        text = f"{seed}:{kind}:{external_name}:{call}".encode()
        draw = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
        return draw < self.share


NO_WORKSPACES = Selector()


def memory_of_model(model: str) -> int:
    """Return the memory of a GPU model in MiB."""
    return MODEL_MEMORY_MIB.get(model.upper().replace(" ", "-"), UNKNOWN_MODEL_MEMORY_MIB)


def check_keys(config: Settings, known: Iterable[str]) -> None:
    """Raise `InvalidConfig` for an unknown setting, so that misspellings are noticed."""
    unknown = sorted(set(config).difference(known))
    if unknown:
        raise InvalidConfig(
            f"A simulated pool has no setting “{unknown[0]}”. Use one of: {', '.join(sorted(known))}."
        )


def state_folder(pool: PoolConfig, driver: str) -> Path:
    """Return the folder of a pool's state. Raises `InvalidConfig`."""
    folder = pool.config.get("state")
    if folder is not None and (not isinstance(folder, str) or not folder.strip()):
        raise InvalidConfig(f"The setting “state” is not a folder path: {folder!r}. Correct the setting.")
    if folder:
        return Path(folder)
    if not _SLUG.fullmatch(pool.slug):
        raise InvalidConfig(f"The slug “{pool.slug}” is not a valid folder name. Choose another slug.")
    return Path(os.environ.get("BERTH_HOME") or "var") / driver / pool.slug


def invalid_setting(key: str, expected: str, value: JsonScalar) -> InvalidConfig:
    return InvalidConfig(
        f"The setting “{key}” must be {expected}, not {value!r}. Correct the pool's settings."
    )


class SettingsReader:
    """Typed access to a pool's settings. Accepts text too, as sent by forms and command lines."""

    def __init__(self, config: Settings) -> None:
        self._config = config

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        value = self._config.get(key)
        if value is None:
            return default
        expected = f"a whole number from {low} to {high}"
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise invalid_setting(key, expected, value)
        try:
            number = int(value)
        except (ValueError, OverflowError):
            raise invalid_setting(key, expected, value) from None
        if not low <= number <= high:
            raise invalid_setting(key, expected, value)
        return number

    def seconds(self, key: str) -> float:
        value = self._config.get(key)
        if value is None:
            return 0.0
        expected = f"a number of seconds from 0 to {MAX_SECONDS}"
        number = _number(value)
        if number is None or not 0 <= number <= MAX_SECONDS:
            raise invalid_setting(key, expected, value)
        return number

    def flag(self, key: str) -> bool:
        value = self._config.get(key)
        if value in (None, False, 0, "0", "false", ""):
            return False
        if value in (True, 1, "1", "true"):
            return True
        raise invalid_setting(key, "true or false", value)

    def text(self, key: str, default: str) -> str:
        value = self._config.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise invalid_setting(key, "a text", value)
        return value

    def names(self, key: str) -> frozenset[str]:
        names = self.text(key, "").split(",")
        return frozenset(name.strip() for name in names if name.strip())

    def selector(self, key: str, default: float = 0.0) -> Selector:
        value = self._config.get(key)
        if value is None:
            return Selector(share=default)
        if value in ("true", "false"):
            value = value == "true"
        number = float(value) if isinstance(value, bool) else _number(value)
        if number is not None and 0 <= number <= 1:
            return Selector(share=number)
        if number is None and isinstance(value, str):
            return Selector(names=self.names(key))
        raise invalid_setting(key, "a share from 0 to 1 or names separated by commas", value)


def model_of(reader: SettingsReader) -> str:
    """Return the setting `model` without the mark of simulated models. Raises `InvalidConfig`."""
    model = reader.text("model", "H100").removeprefix("Simulated ").strip()
    if not model or len(model) > MAX_MODEL_LENGTH:
        raise invalid_setting("model", f"a name of 1 to {MAX_MODEL_LENGTH} characters", model)
    return model


def _number(value: JsonScalar) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
