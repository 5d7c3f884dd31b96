"""The table of checks, whose model moves to a room of its own."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ('inventory', '0004_samples'),
    ]

    operations = [
        migrations.AlterModelTable(name="GpuCheckRun", table="gpu_checks_gpucheckrun"),
    ]
