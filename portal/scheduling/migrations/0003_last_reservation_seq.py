"""The number of the newest back-fill reservation is called so."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0002_snapshot_feed")]

    operations = [
        migrations.RenameField("queuestate", "promises", "last_reservation_seq"),
    ]
