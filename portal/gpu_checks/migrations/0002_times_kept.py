"""Keeps with each workspace when the checks before its hand-out began, and when all had ended."""

from django.db import migrations
from django.db.models import Max, Min


def keep_times(apps, schema_editor):
    runs = apps.get_model("gpu_checks", "GpuCheckRun").objects
    workspaces = apps.get_model("workspaces", "Workspace").objects
    for workspace in workspaces.filter(state__in=["provisioning", "running"], placed_at__isnull=False):
        its = runs.filter(workspace=workspace, cause="hand_out", created_at__gte=workspace.placed_at)
        times = its.aggregate(began=Min("created_at"), ended=Max("finished_at"))
        if times["began"] is None:
            continue
        under_way = its.filter(status__in=["queued", "running"]).exists()
        workspaces.filter(pk=workspace.pk).update(
            checks_began_at=times["began"], checks_ended_at=None if under_way else times["ended"]
        )


class Migration(migrations.Migration):
    dependencies = [
        ("gpu_checks", "0001_initial"),
        ("workspaces", "0006_allocations_moved"),
    ]

    operations = [migrations.RunPython(keep_times, migrations.RunPython.noop)]
