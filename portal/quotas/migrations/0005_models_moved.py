"""Models that have moved to rooms of their own leave the state of this one."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ('quotas', '0004_tables_renamed'),
        ('accounts', '0003_delegation'),
        ('ledger', '0001_initial'),
        ('quota_requests', '0001_initial'),
        ('reservations', '0001_initial'),
        ('scheduling', '0001_initial'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name='grant',
                    name='request',
                    field=models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='grant', to='quota_requests.quotarequest'),
                ),
                migrations.DeleteModel(name='LedgerEntry'),
                migrations.DeleteModel(name='LedgerAccount'),
                migrations.DeleteModel(name='Reservation'),
                migrations.DeleteModel(name='QueueState'),
                migrations.DeleteModel(name='QuotaRequest'),
                migrations.DeleteModel(name='AutoApproveRule'),
                migrations.DeleteModel(name='Delegation'),
            ],
        ),
    ]
