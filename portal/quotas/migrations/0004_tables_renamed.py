"""Tables whose models move to rooms of their own: ledger, reservations, scheduling, requests, delegations."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ('quotas', '0003_reservation_told'),
    ]

    operations = [
        migrations.AlterModelTable(name="LedgerAccount", table="ledger_ledgeraccount"),
        migrations.AlterModelTable(name="LedgerEntry", table="ledger_ledgerentry"),
        migrations.AlterModelTable(name="Reservation", table="reservations_reservation"),
        migrations.AlterModelTable(name="QueueState", table="scheduling_queuestate"),
        migrations.AlterModelTable(name="AutoApproveRule", table="quota_requests_autoapproverule"),
        migrations.AlterModelTable(name="QuotaRequest", table="quota_requests_quotarequest"),
        migrations.AlterModelTable(name="Delegation", table="accounts_delegation"),
    ]
