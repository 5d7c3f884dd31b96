"""What has been told of a reservation, so that it is told once."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("quotas", "0002_grant_warned_at")]

    operations = [
        migrations.AddField(
            model_name="reservation",
            name=name,
            field=models.DateTimeField(blank=True, help_text=text, null=True),
        )
        for name, text in (
            ("reminded_at", "When the team was told that it begins soon."),
            ("begun_at", "When its beginning was acted on."),
            ("ended_at", "When its end was acted on."),
        )
    ]
