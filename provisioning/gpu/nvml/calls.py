"""NVML calls: unavailable values are None, and errors are typed."""

from __future__ import annotations

from typing import Any

import pynvml

from provisioning.gpu.problems import UNAVAILABLE, NvmlProblem, problem_of

# For a few unsigned values, drivers return all ones instead of an error if unavailable.
_UNSET = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


def text(value: str | bytes) -> str:
    """Return NVML text as `str`; the binding returns either type."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def query_optional(name: str, *args: Any) -> Any:
    """Make one call; None if the value is unavailable. Raises `NvmlProblem`."""
    function = getattr(pynvml, name, None)
    if function is None:
        return None
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        if error.value in UNAVAILABLE:
            return None
        raise problem_of(error) from error
    except UnicodeDecodeError:
        return None


def query_required(name: str, *args: Any) -> Any:
    """Make a call whose value every working device has. Raises `NvmlProblem`."""
    try:
        return getattr(pynvml, name)(*args)
    except pynvml.NVMLError as error:
        raise problem_of(error) from error
    except UnicodeDecodeError as error:
        raise NvmlProblem("The NVIDIA driver returned invalid text.") from error


def number(value: Any) -> int | None:
    """Return the value, or None for NVML's marker of unavailable values."""
    return None if value is None or int(value) in _UNSET else int(value)


_UNION = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


def field(value: Any) -> int | None:
    """Return a value of `nvmlDeviceGetFieldValues`. Raises `GpuLost`."""
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        if value.nvmlReturn in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
            raise problem_of(pynvml.NVMLError(value.nvmlReturn))
        return None
    member = _UNION.get(value.valueType)
    return None if member is None else int(getattr(value.value, member))


def bus_id(raw: str | bytes) -> str:
    """Convert NVML's `00000000:1B:00.0` to the form of sysfs, `0000:1b:00.0`."""
    lower = text(raw).lower()
    domain, _, slot = lower.partition(":")
    try:
        return f"{int(domain, 16):04x}:{slot}" if slot else lower
    except ValueError:
        return lower
