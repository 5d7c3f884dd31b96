"""Texts that explain why a node or device rejects a request. They follow the node's name (`joined`)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from portal.common.formatting import MIB_PER_GIB, format_reading, format_thousandths
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import Params, Text, message_of
from portal.scheduling.engine.codes import PlacementCode

_BONDS = {"numa": _("NUMA node"), "island": _("NVLink island")}


def joined(name: str, reason: Reason) -> str:
    """Return the node with its reason: “node-1 is offline”, “node-1: 0 of 8 CPU cores free, needs 1”."""
    colon = "" if reason.code in _PREDICATES else ":"
    return f"{name}{colon} {message_of(reason)}"


def _without_stop(params: Params) -> Params:
    """Return the params with the driver's text without the final stop, as a part of a longer sentence."""
    return {**params, "message": params["message"].removesuffix(".")}


def models_label(models: Iterable[str]) -> str:
    """Return the models of a request as text: “H100”, “H100 or A100”, or “accelerator”."""
    return _now(" or ").join(models) or _now("accelerator")


def _gib(mib: int) -> str:
    return format_reading(mib / MIB_PER_GIB)


def _memory(params: Params) -> Params:
    return {name: _gib(value) for name, value in params.items()}


def _cores(params: Params) -> Params:
    return {name: format_thousandths(value, 3) for name, value in params.items()}


def _devices(params: Params) -> Params:
    return {**params, "label": models_label(params.get("models", ())), "out": _out_of_service(params)}


def _device_memory(params: Params) -> Params:
    return {**_devices(params), "largest": _gib(params["largest"]), "needed": _gib(params["needed"])}


def _shares(params: Params) -> Params:
    return {**_devices(params), "percent": format_thousandths(params["share_milli"] * 100, 1)}


def _out_of_service(params: Params) -> str:
    broken = params.get("unusable", 0)
    return _now(" (%(count)s out of service)") % {"count": broken} if broken else ""


def _bonded(params: Params) -> Params:
    return {**_devices(params), "bond": _BONDS[params["within"]]}


def _mig(params: Params) -> Params:
    gpus = ", ".join(params.get("repartition", ()))
    other = _now("; another MIG layout of %(gpus)s would make room") % {"gpus": gpus} if gpus else ""
    return {**params, "other_layout": other}


def format_version(version: Iterable[int]) -> str:
    """Return a version as text, such as “12.4”."""
    return ".".join(map(str, version))


def format_requirements(
    min_cuda: Iterable[int] | None, min_compute_capability: Iterable[int] | None, model: str = ""
) -> str:
    """Return the requirements as text: “CUDA 12.4 or newer and compute capability 8.0 or newer on H100”."""
    parts = []
    if min_cuda is not None:
        parts.append(_now("CUDA %(version)s or newer") % {"version": format_version(min_cuda)})
    if min_compute_capability is not None:
        values = _version({"version": min_compute_capability, "model": model})
        parts.append(_now("compute capability %(version)s or newer%(on_model)s") % values)
    return _now(" and ").join(parts)


def _version(params: Params) -> Params:
    model = params.get("model")
    on_model = _now(" on %(model)s") % {"model": model} if model else ""
    return {"version": format_version(params["version"]), "on_model": on_model}


def _noted(params: Params) -> Params:
    return {"note": f": {params['note']}" if params.get("note") else ""}


def _parent(params: Params) -> Params:
    parent = Reason(PlacementCode(params["code"]), params["params"])
    return {"parent": message_of(parent)}


_PREDICATES = frozenset(
    {
        PlacementCode.NODE_OFFLINE,
        PlacementCode.NODE_CORDONED,
        PlacementCode.NODE_OVERCOMMITTED,
        PlacementCode.NODE_RETIRED,
        PlacementCode.POOL_UNREACHABLE,
        PlacementCode.POOL_DISABLED,
        PlacementCode.IN_MAINTENANCE,
        PlacementCode.LABEL_MISSING,
        PlacementCode.HOME_ELSEWHERE,
        PlacementCode.FEATURE_MISSING,
        PlacementCode.FOLDER_MISSING,
        PlacementCode.SHARES_NOT_HELD,
        PlacementCode.CUDA_TOO_OLD,
        PlacementCode.COMPUTE_CAPABILITY_TOO_LOW,
        PlacementCode.NODE_LACKS_PROGRAM,
        PlacementCode.MODEL_MISSING,
        PlacementCode.ONLY_AS_MIG,
        PlacementCode.MIG_PROFILE_MISSING,
    }
)
"""Codes whose texts start with a verb and follow the node's name without a colon."""

TEXTS: dict[StrEnum, Text] = {
    PlacementCode.NODE_OFFLINE: Text(_("is offline")),
    PlacementCode.NODE_CORDONED: Text(_("is cordoned by an operator")),
    PlacementCode.NODE_RETIRED: Text(
        _("was retired or revoked"), _("Ask an operator about the data on this node.")
    ),
    PlacementCode.NODE_OVERCOMMITTED: Text(_("is overcommitted")),
    PlacementCode.POOL_UNREACHABLE: Text(_("is unreachable because its pool does not respond")),
    PlacementCode.POOL_DISABLED: Text(_("is in a disabled pool")),
    PlacementCode.IN_MAINTENANCE: Text(_("is in maintenance")),
    PlacementCode.ENGINE_QUEUE_FULL: Text(
        _("belongs to a cluster where %(waiting)s workspaces wait already")
    ),
    PlacementCode.DEVICE_CORDONED: Text(_("cordoned%(note)s"), prepare=_noted),
    PlacementCode.DEVICE_UNHEALTHY: Text(_("unhealthy%(note)s"), prepare=_noted),
    PlacementCode.DEVICE_CHECKING: Text(_("is being checked")),
    PlacementCode.DEVICE_UNSCRUBBED: Text(_("has to be scrubbed after its last use")),
    PlacementCode.PARENT_UNUSABLE: Text(_("its GPU is out of service: %(parent)s"), prepare=_parent),
    PlacementCode.LABEL_MISSING: Text(_("lacks the label %(name)s=%(value)s")),
    PlacementCode.HOME_ELSEWHERE: Text(
        _("does not have your home folder"),
        _("Choose a size that fits %(node)s, or wait until the node has capacity."),
    ),
    PlacementCode.HOME_MOVING: Text(_("your home folder is moving to %(node)s")),
    PlacementCode.HOME_ARCHIVED: Text(_("your home folder is being archived or restored")),
    PlacementCode.HOME_AWAY: Text(_("your archived home folder must be restored first")),
    PlacementCode.HOME_LOST: Text(_("your home folder was on %(node)s, which was removed")),
    PlacementCode.FEATURE_MISSING: Text(_("lacks %(name)s")),
    PlacementCode.FOLDER_MISSING: Text(_("lacks the folder %(name)s")),
    PlacementCode.SHARES_NOT_HELD: Text(_("cannot enforce GPU shares")),
    PlacementCode.ENVIRONMENT_MISSING: Text(_("the software environment is not installed yet")),
    PlacementCode.CUDA_TOO_OLD: Text(_("lacks CUDA %(version)s or newer"), prepare=_version),
    PlacementCode.COMPUTE_CAPABILITY_TOO_LOW: Text(
        _("lacks compute capability %(version)s or newer%(on_model)s"), prepare=_version
    ),
    PlacementCode.NODE_LACKS_PROGRAM: Text(_("lacks the program %(program)s")),
    PlacementCode.CPU_SHORT: Text(
        _("%(free)s of %(total)s CPU cores free, needs %(needed)s"), prepare=_cores
    ),
    PlacementCode.MEMORY_SHORT: Text(
        _("%(free)s of %(total)s GiB memory free, needs %(needed)s"), prepare=_memory
    ),
    PlacementCode.DISK_SHORT: Text(_("%(free)s GiB disk free, needs %(needed)s"), prepare=_memory),
    PlacementCode.MODEL_MISSING: Text(_("has no %(label)s"), prepare=_devices),
    PlacementCode.ONLY_AS_MIG: Text(_("has %(label)s only as MIG instances"), prepare=_devices),
    PlacementCode.DEVICE_MEMORY_SHORT: Text(
        _("the largest %(label)s has %(largest)s GiB; the request needs %(needed)s"), prepare=_device_memory
    ),
    PlacementCode.DEVICES_SHORT: Text(
        _("%(free)s of %(total)s × %(label)s free, needs %(needed)s on one node%(out)s"), prepare=_devices
    ),
    PlacementCode.DEVICE_SHARES_SHORT: Text(
        _("%(free)s of %(total)s × %(label)s with %(percent)s %% free, needs %(needed)s on one node%(out)s"),
        prepare=_shares,
    ),
    PlacementCode.BONDED_DEVICES_SHORT: Text(
        _("%(free)s × %(label)s free in one %(bond)s, needs %(needed)s"), prepare=_bonded
    ),
    PlacementCode.MIG_PROFILE_MISSING: Text(
        _("has no MIG instance %(profile)s%(other_layout)s"), prepare=_mig
    ),
    PlacementCode.MIG_INSTANCES_SHORT: Text(
        _("%(free)s of %(total)s × %(profile)s free, needs %(needed)s on one node%(other_layout)s"),
        prepare=_mig,
    ),
    PlacementCode.NODES_SHORT: Text(_("fits, but only %(fitting)s of %(needed)s nodes fit")),
    PlacementCode.REFUSED_BY_DRIVER: Text("%(message)s", prepare=_without_stop),
}
