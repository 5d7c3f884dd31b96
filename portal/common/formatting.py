"""Formats amounts, durations and times for people. The only module that turns numbers into text.

Amounts are in base units: thousandths of a GPU, MIG instance or core (milli), MiB, and milli-GPU-seconds for
GPU-hours (3 600 000 per hour). Whole numbers have a narrow no-break space as thousands separator. These
functions use no database, request or markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from django.conf import settings
from django.utils import dateformat
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

THOUSANDS_SEPARATOR = "\u202f"
NOTHING = "–"
MIB_PER_GIB = 1024
MIB_PER_TIB = 1024 * 1024
MILLI = 1000
MILLI_GPU_S_PER_HOUR = 3_600_000
HOUR_S, DAY_S = 3600, 86_400
MAX_INPUT_DIGITS = 20
MAX_AMOUNT = 10**15

_SIMULATED = "simulated_"
_MIB_RESOURCES = frozenset({"memory_mib", "disk_mib"})
_BONDS = {"numa": gettext_lazy("on one NUMA node"), "island": gettext_lazy("in one NVLink island")}


# --- numbers ------------------------------------------------------------------------------------------


def format_number(value: float, digits: int = 0) -> str:
    """Format a number with up to `digits` decimals and no trailing zeros: 12672 → "12 672"."""
    text = f"{value:,.{digits}f}".replace(",", THOUSANDS_SEPARATOR)
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_thousandths(value: int | None, digits: int = 2) -> str:
    """Format thousandths as a plain number: 500 → "0.5". None becomes a dash."""
    return NOTHING if value is None else format_number(value / MILLI, digits)


def format_share(share: float | None) -> str:
    """Format a share from 0 to 1 as a percentage. None becomes a dash."""
    return NOTHING if share is None else f"{100 * share:.0f} %"


def format_reading(value: float) -> str:
    """Format a measured value: up to one decimal, or three significant digits below 1."""
    return format_number(value, 1) if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def format_memory(mib: int | None) -> str:
    """Format memory or disk in MiB with the largest suitable unit: "512 MiB", "1.5 GiB", "1.2 TiB"."""
    if mib is None:
        return NOTHING
    if mib >= MIB_PER_TIB:
        return f"{format_number(mib / MIB_PER_TIB, 1)} TiB"
    return _gib(mib)


def _gib(mib: int) -> str:
    if abs(mib) >= MIB_PER_GIB or mib == 0:
        return f"{format_number(mib / MIB_PER_GIB, 1)} GiB"
    return f"{mib} MiB"


def format_cores(milli: int | None) -> str:
    """Format milli-CPU: "1 core", "2.25 cores"."""
    if milli is None:
        return NOTHING
    unit_text = ngettext("%(number)s core", "%(number)s cores", 1 if milli == MILLI else 2)
    return unit_text % {"number": format_thousandths(milli)}


def format_gpu_hours(amount: int) -> str:
    """Format milli-GPU-seconds as hours without a unit: 5 400 000 → "1.5"."""
    return format_number(amount / MILLI_GPU_S_PER_HOUR, 3)


# --- resources ----------------------------------------------------------------------------------------


def units_per_whole(resource: str) -> int:
    """Return the number of base units per displayed unit: GPU, core, GiB, workspace or hour."""
    if resource == "gpu_hours":
        return MILLI_GPU_S_PER_HOUR
    plain = resource.removeprefix(_SIMULATED)
    if plain in _MIB_RESOURCES:
        return MIB_PER_GIB
    return 1 if plain == "workspaces" else MILLI


def format_resource(resource: str) -> str:
    """Return the display name of a resource: `gpu:h100` → "H100", `memory_mib` → "Memory"."""
    if resource.startswith(_SIMULATED):
        plain = format_resource(resource.removeprefix(_SIMULATED))
        return _("Simulated %(resource)s") % {"resource": _uncapitalized(plain)}
    kind, colon, model = resource.partition(":")
    if colon and kind in ("gpu", "mig"):
        simulated, model = model.startswith("simulated-"), model.removeprefix("simulated-")
        name = f"MIG {model}" if kind == "mig" else model.replace("-", " ").upper()
        return _("Simulated %(resource)s") % {"resource": name} if simulated else name
    match resource:
        case "gpu":
            return _("GPUs of any model")
        case "cpu_milli":
            return _("CPU cores")
        case "memory_mib":
            return _("Memory")
        case "disk_mib":
            return _("Storage")
        case "workspaces":
            return _("Workspaces")
        case "gpu_hours":
            return _("GPU-hours")
    return resource


def _uncapitalized(name: str) -> str:
    """Lower-case the first letter for use within a sentence, except in acronyms such as "CPU cores"."""
    return name if name[:2].isupper() else name[:1].lower() + name[1:]


def format_unit(resource: str) -> str:
    """Return the unit shown after an input field: "GPUs", "MIG instances", "cores", "GiB"."""
    plain = resource.removeprefix(_SIMULATED)
    if plain in _MIB_RESOURCES:
        return "GiB"
    match plain:
        case "cpu_milli":
            return _("cores")
        case "workspaces":
            return _("workspaces")
        case "gpu_hours":
            return _("GPU-hours")
    return _("MIG instances") if plain.startswith("mig:") else _("GPUs")


def unit_symbol(resource: str) -> str:
    """Return the unit symbol shown after an amount, or "" if the resource's name implies it."""
    if resource.removeprefix(_SIMULATED) in _MIB_RESOURCES:
        return "GiB"
    return pgettext("hours", "h") if resource == "gpu_hours" else ""


def format_amount(resource: str, amount: int) -> str:
    """Format an amount with its unit, without the name of the resource: "1.5", "64 GiB", "12 h"."""
    if resource.removeprefix(_SIMULATED) in _MIB_RESOURCES:
        return _gib(amount)
    number = format_number(amount / units_per_whole(resource), 3)
    symbol = unit_symbol(resource)
    return f"{number} {symbol}" if symbol else number


def format_resource_amount(resource: str, amount: int) -> str:
    """Format amount and resource: "1.5 × H100", "4 CPU cores", "2 GiB memory", "12 GPU-hours"."""
    number = format_amount(resource, amount)
    if resource.startswith(("gpu:", "mig:")):
        return f"{number} × {format_resource(resource)}"
    count = 1 if amount == MILLI else 2
    match resource:
        case "gpu":
            return ngettext("%(number)s GPU", "%(number)s GPUs", count) % {"number": number}
        case "cpu_milli":
            return ngettext("%(number)s CPU core", "%(number)s CPU cores", count) % {"number": number}
        case "gpu_hours":
            return _("%(number)s GPU-hours") % {"number": format_gpu_hours(amount)}
        case "workspaces":
            return ngettext("%(number)s workspace", "%(number)s workspaces", amount) % {"number": number}
    return f"{number} {_uncapitalized(format_resource(resource))}"


def format_input(resource: str, amount: int | None, digits: int = 6) -> str:
    """Format base units for an input field. With 6 digits the value is exact and round-trips."""
    if amount is None:
        return ""
    return f"{Decimal(amount) / units_per_whole(resource):.{digits}f}".rstrip("0").rstrip(".")


def parse_input(text: str, units: int) -> int:
    """Parse a non-negative decimal and multiply it by `units`. Raises `ValueError` for invalid input."""
    for space in (" ", "\u00a0", "\u2009", THOUSANDS_SEPARATOR):
        text = text.replace(space, "")
    text = text.strip().replace(",", ".")
    try:
        number = Decimal(text) if len(text) <= MAX_INPUT_DIGITS else Decimal("NaN")
        amount = (number * units).to_integral_value() if number.is_finite() else None
    except InvalidOperation:
        amount = None
    if amount is None or not 0 <= amount <= MAX_AMOUNT:
        raise ValueError(f"no amount: {text!r}")
    return int(amount)


def format_size(request: Mapping[str, Any]) -> str:
    """Format the size of a stored request: "1 × H100, 8 cores, 32 GiB".

    A share of a GPU is always marked as not isolated, because nothing enforces the share.
    """
    accelerators = request.get("accelerators") or {}
    parts = []
    if count := accelerators.get("count", 0):
        profile = accelerators.get("mig_profile")
        model = f"MIG {profile}" if profile else accelerators.get("model") or _("GPU")
        share = accelerators.get("share_milli", MILLI)
        part = (
            ""
            if share == MILLI
            else " " + _("(%(share)s of one, not isolated)") % {"share": format_thousandths(share)}
        )
        bond = _BONDS.get(accelerators.get("within", "")) if count > 1 else None
        parts.append(f"{count} × {model}{part}" + (f" {bond}" if bond else ""))
    parts += [format_cores(request["cpu_milli"]), format_memory(request["memory_mib"])]
    if disk := request.get("disk_mib", 0):
        parts.append(_("%(amount)s disk") % {"amount": format_memory(disk)})
    if (nodes := request.get("nodes", 1)) > 1:
        parts.append(_("on each of %(nodes)s nodes") % {"nodes": nodes})
    return ", ".join(parts)


# --- durations and times ------------------------------------------------------------------------------


def format_duration(seconds: float | None) -> str:
    """Format seconds as 0.4 s, 48 s, 3 min 20 s, 2 h 5 min or 4 d 3 h. None becomes a dash."""
    if seconds is None:
        return NOTHING
    seconds = max(0.0, float(seconds))
    if seconds < 9.95:
        return _("%(seconds)s s") % {"seconds": f"{seconds:.1f}"}
    total = round(seconds)
    if total < 60:
        return _("%(seconds)s s") % {"seconds": total}
    minutes, rest = divmod(total, 60)
    if minutes < 60:
        return _join_units(_("%(number)s min"), minutes, _("%(number)s s"), rest if minutes < 10 else 0)
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return _join_units(_("%(number)s h"), hours, _("%(number)s min"), minutes)
    days, hours = divmod(hours, 24)
    return _join_units(_("%(number)s d"), days, _("%(number)s h"), hours)


def format_time_left(seconds: float) -> str:
    """Format the time left in whole seconds: 0 s, 48 s, 2 d 23 h. berth.js implements the same format."""
    rounded = max(0, round(seconds))
    return _("%(seconds)s s") % {"seconds": rounded} if rounded < 60 else format_duration(rounded)


def format_span(seconds: float) -> str:
    """Format a time span within a sentence: "3 days", "1 hour"; otherwise like `format_duration`."""
    if seconds >= 2 * DAY_S and seconds % DAY_S == 0:
        days = int(seconds) // DAY_S
        return ngettext("%(number)s day", "%(number)s days", days) % {"number": format_number(days)}
    if seconds >= HOUR_S and seconds % HOUR_S == 0:
        hours = int(seconds) // HOUR_S
        return ngettext("%(number)s hour", "%(number)s hours", hours) % {"number": format_number(hours)}
    return format_duration(seconds)


def _join_units(large: str, number: int, small: str, rest: int) -> str:
    parts = [large % {"number": format_number(number)}]
    if rest:
        parts.append(small % {"number": rest})
    return " ".join(parts)


def format_moment(moment: datetime) -> str:
    """Format date and time in UTC: "21 Nov 2026, 09:00 UTC"."""
    return f"{dateformat.format(moment.astimezone(UTC), 'j M Y, H:i')} UTC"


def format_date(moment: datetime) -> str:
    """Format the date in UTC: "21 Nov 2026"."""
    return dateformat.format(moment.astimezone(UTC), "j M Y")


def format_day_time(moment: datetime) -> str:
    """Format day and time in UTC, without the year: "21 Nov, 09:00"."""
    return dateformat.format(moment.astimezone(UTC), "j M, H:i")


def format_time_span(start: datetime, end: datetime) -> str:
    """Format start and end in UTC without repeating the date: "21 Nov 2026, 09:00 to 12:00 UTC"."""
    first, last = start.astimezone(UTC), end.astimezone(UTC)
    until = dateformat.format(last, "H:i" if first.date() == last.date() else "j M Y, H:i")
    bounds = {"start": dateformat.format(first, "j M Y, H:i"), "end": until}
    return _("%(start)s to %(end)s UTC") % bounds


def format_clock(moment: datetime, now: datetime) -> str:
    """Format the time of day in UTC, with the date unless it is the same day as `now`."""
    at, today = moment.astimezone(UTC), now.astimezone(UTC).date()
    return f"{dateformat.format(at, 'H:i' if at.date() == today else 'j M H:i')} UTC"


def format_money(amount: float) -> str:
    """Format an amount in the site's currency: `12.50 EUR`."""
    return f"{amount:,.2f} {settings.BERTH_CURRENCY}"
