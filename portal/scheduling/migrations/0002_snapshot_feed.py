"""The scheduler's caches follow a feed of changes of their own, not the audit log."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0001_initial")]

    operations = [
        migrations.RemoveField("queuestate", "seen_event"),
        migrations.AddField("queuestate", "seen_generation", models.PositiveBigIntegerField(default=0)),
        migrations.CreateModel(
            name="SnapshotChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("workload", "One workload"),
                            ("node", "One node and its devices"),
                            ("capacity", "Pools, and which nodes and devices there are"),
                            ("limits", "Teams, cohorts, quotas, budgets and reservations"),
                        ],
                        max_length=8,
                    ),
                ),
                ("key", models.UUIDField(blank=True, null=True)),
                ("at", models.DateTimeField(auto_now_add=True, db_index=True)),
            ],
        ),
    ]
