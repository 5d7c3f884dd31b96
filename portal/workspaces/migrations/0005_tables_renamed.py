"""The tables of allocations, whose models move to inventory."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ('workspaces', '0004_idle'),
    ]

    operations = [
        migrations.AlterModelTable(name="Allocation", table="inventory_allocation"),
        migrations.AlterModelTable(name="AllocatedDevice", table="inventory_allocateddevice"),
    ]
