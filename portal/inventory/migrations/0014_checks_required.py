from __future__ import annotations

from typing import Any

from django.db import migrations, models


def require(apps: Any, _: Any) -> None:
    """Devices of real pools are handed out only once they are seen to be good and clean."""
    pools = apps.get_model("inventory", "Pool").objects.filter(simulated=False)
    pools.update(check_required=True, scrub_required=True)


class Migration(migrations.Migration):
    dependencies = [
        ("inventory", "0013_allocation_flavor"),
    ]

    operations = [
        migrations.AlterField(
            model_name="pool",
            name="check_required",
            field=models.BooleanField(default=True),
        ),
        migrations.AlterField(
            model_name="pool",
            name="scrub_required",
            field=models.BooleanField(default=True),
        ),
        migrations.RunPython(require, migrations.RunPython.noop),
    ]
