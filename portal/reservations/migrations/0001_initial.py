"""What was in the room of quotas; quotas.0004 has renamed the tables."""

import django.db.models.deletion
import portal.quotas.resources
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('quotas', '0004_tables_renamed'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name='Reservation',
                    fields=[
                        ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                        ('title', models.CharField(max_length=80)),
                        ('amounts', models.JSONField(validators=[portal.quotas.resources.validate_amounts])),
                        ('starts_at', models.DateTimeField()),
                        ('ends_at', models.DateTimeField()),
                        ('status', models.CharField(choices=[('requested', 'Waits for approval'), ('booked', 'Booked'), ('cancelled', 'Cancelled')], default='requested', max_length=10)),
                        ('note', models.TextField(blank=True)),
                        ('reminded_at', models.DateTimeField(blank=True, help_text='When the team was told that it begins soon.', null=True)),
                        ('begun_at', models.DateTimeField(blank=True, help_text='When its beginning was acted on.', null=True)),
                        ('ended_at', models.DateTimeField(blank=True, help_text='When its end was acted on.', null=True)),
                        ('created_at', models.DateTimeField(auto_now_add=True)),
                        ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='reservations', to=settings.AUTH_USER_MODEL)),
                        ('decided_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                        ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reservations', to='accounts.team')),
                    ],
                    options={
                        'ordering': ['starts_at', 'id'],
                        'indexes': [models.Index(fields=['status', 'ends_at'], name='reservation_open')],
                        'constraints': [models.CheckConstraint(condition=models.Q(('ends_at__gt', models.F('starts_at'))), name='reservation_lasts')],
                    },
                ),
    
            ],
        ),
    ]
