"""The columns whose values have moved to rows of their own."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("workspaces", "0007_rows_of_their_own")]

    operations = [
        migrations.RemoveField("workspace", name)
        for name in (
            "activity",
            "blocker",
            "claimed",
            "error_code",
            "error_message",
            "eta_at",
            "eta_basis",
            "gpu_idle_since",
            "heartbeat_at",
            "leave_at",
            "leave_for",
            "leave_reason",
            "log_tail",
            "preempted",
            "promised",
            "queue_position",
        )
    ]
