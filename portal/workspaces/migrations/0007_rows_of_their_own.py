"""Queue, preemption and status leave the row of a workspace for rows of their own."""

import django.db.models.deletion
from django.db import migrations, models

WAITING = "pending"
OUTCOMES = ("queued", "needs_approval", "impossible")


def kept(code, text):
    return {"code": "reported", "params": {"code": code, "text": text}} if text else {}


def move(apps, schema_editor):
    workspaces = apps.get_model("workspaces", "Workspace").objects
    entry, notice = apps.get_model("workspaces", "QueueEntry"), apps.get_model("workspaces", "Preemption")
    status = apps.get_model("workspaces", "WorkspaceStatus")
    entries, notices, states = [], [], []
    for row in workspaces.iterator(chunk_size=1000):
        waits = row.state == WAITING and row.error_code in OUTCOMES
        entries.append(
            entry(
                workspace=row,
                nominated=row.claimed,
                reservation_seq=row.promised,
                preemption_count=row.preempted,
                outcome=row.error_code if waits else "",
                position=row.queue_position,
                eta_at=row.eta_at,
                eta_basis=kept("", row.eta_basis),
                reason=kept("", row.error_message) if waits else {},
                blocker=row.blocker,
            )
        )
        states.append(
            status(
                workspace=row,
                reason={} if waits else kept(row.error_code, row.error_message),
                log_tail=row.log_tail,
                activity=row.activity,
                heartbeat_at=row.heartbeat_at,
                gpu_idle_since=row.gpu_idle_since,
            )
        )
        if row.leave_at is not None:
            notices.append(
                notice(workspace=row, preempt_at=row.leave_at, preempted_by=row.leave_for, cause=row.leave_reason)
            )
    entry.objects.bulk_create(entries, batch_size=500)
    status.objects.bulk_create(states, batch_size=500)
    notice.objects.bulk_create(notices, batch_size=500)
    workspaces.filter(state="provisioning", error_code="no_capacity").update(start_refused=True)


class Migration(migrations.Migration):
    dependencies = [("workspaces", "0006_allocations_moved")]

    operations = [
        migrations.RenameField("workspace", "wanted", "desired_state"),
        migrations.RenameField("workspace", "due_at", "next_reconcile_at"),
        migrations.AddField("workspace", "start_refused", models.BooleanField(default=False)),
        migrations.CreateModel(
            name='Preemption',
            fields=[
                ('workspace', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='preemption', serialize=False, to='workspaces.workspace')),
                ('preempt_at', models.DateTimeField()),
                ('preempted_by', models.CharField(blank=True, max_length=40)),
                ('cause', models.CharField(choices=[('in_team', 'A request of its team has a higher priority'), ('reclaim', 'A team takes its quota back'), ('fair_share', 'Another team has borrowed less'), ('booking', 'A reservation begins'), ('drain', 'Its node or GPU is drained')], max_length=12)),
            ],
        ),
        migrations.CreateModel(
            name='QueueEntry',
            fields=[
                ('workspace', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='queue_entry', serialize=False, to='workspaces.workspace')),
                ('nominated', models.BooleanField(default=False)),
                ('reservation_seq', models.PositiveBigIntegerField(default=0)),
                ('preemption_count', models.PositiveIntegerField(default=0)),
                ('outcome', models.CharField(blank=True, choices=[('queued', 'Queued'), ('needs_approval', 'Needs approval'), ('impossible', 'Impossible')], max_length=16)),
                ('position', models.PositiveIntegerField(blank=True, null=True)),
                ('eta_at', models.DateTimeField(blank=True, null=True)),
                ('eta_basis', models.JSONField(blank=True, default=dict)),
                ('reason', models.JSONField(blank=True, default=dict)),
                ('blocker', models.JSONField(blank=True, default=dict)),
            ],
        ),
        migrations.CreateModel(
            name='WorkspaceStatus',
            fields=[
                ('workspace', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='status', serialize=False, to='workspaces.workspace')),
                ('reason', models.JSONField(blank=True, default=dict)),
                ('log_tail', models.TextField(blank=True)),
                ('activity', models.JSONField(blank=True, default=dict)),
                ('heartbeat_at', models.DateTimeField(blank=True, null=True)),
                ('gpu_idle_since', models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.RunPython(move, migrations.RunPython.noop),
    ]
