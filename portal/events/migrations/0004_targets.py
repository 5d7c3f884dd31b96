"""What entries are about, taken from their data into rows of its own."""

import django.db.models.deletion
from django.db import migrations, models

BATCH = 1000


def fill(apps, schema_editor):
    """Give the entries of before the targets that their data names."""
    event_model = apps.get_model("events", "Event")
    target_model = apps.get_model("events", "EventTarget")
    rows = []
    about = (
        models.Q(kind__startswith="device.") | models.Q(kind__startswith="node.") | models.Q(kind__startswith="quota.")
    )
    for event_id, kind, data in event_model.objects.filter(about).values_list("id", "kind", "data").iterator():
        for target in _targets(kind, data):
            rows.append(target_model(event_id=event_id, kind=target[0], key=target[1]))
        if len(rows) >= BATCH:
            target_model.objects.bulk_create(rows)
            rows = []
    target_model.objects.bulk_create(rows)


def _targets(kind, data):
    if not isinstance(data, dict):
        return []
    if kind.startswith("quota."):
        return [("quota_request", data["request"])] if data.get("request") else []
    found = {("node", data["node"])} if data.get("node") else set()
    if kind.startswith("device."):
        devices = data["devices"] if isinstance(data.get("devices"), list) else [data.get("device")]
        found |= {("device", uuid) for uuid in devices if isinstance(uuid, str)}
    return sorted(found)


class Migration(migrations.Migration):
    dependencies = [("events", "0003_reason_apart")]

    operations = [
        migrations.CreateModel(
            name="EventTarget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[("device", "Device"), ("node", "Node"), ("quota_request", "Quota request")],
                        max_length=16,
                    ),
                ),
                ("key", models.CharField(max_length=255)),
                (
                    "event",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="targets", to="events.event"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "key", "event"), name="event_target_once")
                ],
            },
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
