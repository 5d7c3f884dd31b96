"""REST API of device samples."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, UserRequest, operation, routes
from portal.common.errors import InvalidInput, NotFound
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import next_action_of
from portal.common.scopes import Scope
from portal.fleet.inventory import selectors, series
from portal.fleet.inventory.codes import InventoryCode
from portal.fleet.inventory.series import Series, SeriesPoint


class SamplePointSerializer(serializers.Serializer[dict[str, Any]]):
    """Measurements of a minute or an hour.

    Null means not measured. Points without measurements are omitted.
    """

    start = serializers.DateTimeField(help_text="Start of the minute or hour.")
    measured_s = serializers.IntegerField(help_text="Number of seconds with measurements.")
    gpu_pct = serializers.FloatField(allow_null=True, help_text="Average GPU utilization in percent.")
    gpu_max_pct = serializers.IntegerField(allow_null=True, help_text="Maximum GPU utilization in percent.")
    gpu_p95_pct = serializers.IntegerField(
        allow_null=True, help_text="95th percentile of GPU utilization over the seconds, in percent."
    )
    gpu_s = serializers.IntegerField(
        allow_null=True, help_text="Number of seconds with a measured GPU utilization."
    )
    gpu_used_s = serializers.IntegerField(
        allow_null=True, help_text="Number of seconds with GPU utilization above 0 %."
    )
    memory_mib = serializers.IntegerField(allow_null=True, help_text="Average memory in use, in MiB.")
    memory_max_mib = serializers.IntegerField(allow_null=True, help_text="Maximum memory in use, in MiB.")
    power_mw = serializers.IntegerField(allow_null=True, help_text="Average power in milliwatts.")
    power_max_mw = serializers.IntegerField(allow_null=True, help_text="Maximum power in milliwatts.")
    temperature_c = serializers.IntegerField(
        allow_null=True, help_text="Average temperature in degrees Celsius."
    )
    temperature_max_c = serializers.IntegerField(
        allow_null=True, help_text="Maximum temperature in degrees Celsius."
    )
    sm_clock_mhz = serializers.IntegerField(allow_null=True, help_text="Average SM clock in MHz.")
    pcie_tx_kib_s = serializers.IntegerField(
        allow_null=True, help_text="PCIe transmit rate in KiB per second."
    )
    pcie_rx_kib_s = serializers.IntegerField(
        allow_null=True, help_text="PCIe receive rate in KiB per second."
    )
    throttle_s = serializers.IntegerField(
        allow_null=True, help_text="Number of seconds with a measured throttle state."
    )
    thermal_s = serializers.IntegerField(allow_null=True, help_text="Number of seconds throttled by heat.")
    power_s = serializers.IntegerField(
        allow_null=True, help_text="Number of seconds throttled by power limits."
    )
    slowed_s = serializers.IntegerField(
        allow_null=True, help_text="Number of seconds throttled for other reasons."
    )


class DeviceSamplesSerializer(serializers.Serializer[dict[str, Any]]):
    """Measurements of a device. `step_s` is the length of each point; missing points are gaps."""

    device = serializers.UUIDField(help_text="Id of the accelerator.")
    uuid = serializers.CharField(help_text="UUID of the accelerator, from its driver.")
    simulated = serializers.BooleanField(help_text="Simulated devices have no samples.")
    span = serializers.ChoiceField(
        choices=[(name, name) for name in series.SPANS], help_text="Length of the period."
    )
    start = serializers.DateTimeField(help_text="Start of the period.")
    end = serializers.DateTimeField(help_text="End of the period.")
    step_s = serializers.IntegerField(help_text="Interval of each point, in seconds.")
    idle_s = serializers.IntegerField(
        help_text="Current idle time of the GPU in seconds. Unmeasured time counts as use."
    )
    points = SamplePointSerializer(many=True, help_text="Measurements, oldest first.")


SPAN = OpenApiParameter(
    "span",
    str,
    description="`hour`: the last hour, by minute. `month`: the last 30 days, by hour.",
    enum=list(series.SPANS),
    default=series.HOUR,
)


def _to_datetime(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _row(point: SeriesPoint) -> dict[str, Any]:
    row = asdict(point)
    row["start"] = _to_datetime(row.pop("start_s"))
    if point.gpu_pct is not None:
        row["gpu_pct"] = round(point.gpu_pct, 2)
    return row


class DeviceSamples(ApiView):
    """Samples of a device."""

    tag = "gpus"
    operation_ids = {"get": "getDeviceSamples"}
    scopes = {"GET": Scope.POOLS_READ, "*": Scope.POOLS_WRITE}
    query_params = frozenset({"span"})

    @operation(
        "Read a device's measurements",
        parameters=[SPAN],
        responses={200: DeviceSamplesSerializer},
        errors=[400, 404],
    )
    def get(self, request: UserRequest, device_id: UUID) -> Response:
        span = request.query_params.get("span", series.HOUR)
        if span not in series.SPANS:
            reason = Reason(InventoryCode.SPAN_UNKNOWN, {"known": list(series.SPANS)})
            raise InvalidInput(reason, errors={"span": [next_action_of(reason)]})
        device = selectors.devices().filter(pk=device_id).first()
        if device is None:
            raise NotFound(Reason(InventoryCode.NO_SUCH_DEVICE))
        now = timezone.now()
        result: Series = series.device_series(device, span, now=now)
        body = {
            "device": device.pk,
            "uuid": device.uuid,
            "simulated": result.simulated,
            "span": span,
            "start": _to_datetime(result.start_s),
            "end": _to_datetime(result.end_s),
            "step_s": result.step_s,
            "idle_s": series.idle_s(device, now),
            "points": [_row(point) for point in result.measured],
        }
        return Response(DeviceSamplesSerializer(body).data)


urlpatterns = routes("devices/<uuid:device_id>/samples", DeviceSamples, "device-samples")
