"""Allocations have moved to inventory. When the checks of a workspace's devices were is kept with it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ('workspaces', '0005_tables_renamed'),
        ('inventory', '0006_allocations'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.DeleteModel(name='AllocatedDevice'),
                migrations.DeleteModel(name='Allocation'),
            ],
        ),
        migrations.AddField(
            model_name='workspace',
            name='checks_began_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='workspace',
            name='checks_ended_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
