import django.db.models.deletion
import portal.quota.limits.resources
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('accounts', '__first__'),
    ]

    operations = [
        migrations.CreateModel(
            name='BookingPermission',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='booking_permissions', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='booking_permissions', to='accounts.team')),
                ('granted_by', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['created_at', 'id'],
                'constraints': [models.UniqueConstraint(fields=('user', 'team'), name='booking_permission_once'), models.UniqueConstraint(condition=models.Q(('team', None)), fields=('user',), name='booking_permission_for_all_once'), models.CheckConstraint(condition=models.Q(('user', models.F('granted_by')), _negated=True), name='booking_permission_by_another')],
            },
        ),
        migrations.CreateModel(
            name='Reservation',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reservations', to='accounts.team')),
                ('title', models.CharField(max_length=80)),
                ('amounts', models.JSONField(validators=[portal.quota.limits.resources.validate_amounts])),
                ('starts_at', models.DateTimeField()),
                ('ends_at', models.DateTimeField()),
                ('state', models.CharField(choices=[('requested', 'Waiting for approval'), ('booked', 'Booked'), ('cancelled', 'Cancelled')], default='requested', max_length=10)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='reservations', to=settings.AUTH_USER_MODEL)),
                ('decided_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('changed_by', models.ForeignKey(blank=True, help_text='User who last changed the open request.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('permission', models.ForeignKey(blank=True, help_text='Permission by which it was booked without approval.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='reservations.bookingpermission')),
                ('note', models.TextField(blank=True)),
                ('reminded_at', models.DateTimeField(blank=True, help_text='Time at which the team was notified of the coming start.', null=True)),
                ('begun_at', models.DateTimeField(blank=True, help_text='Time at which its start was processed.', null=True)),
                ('ended_at', models.DateTimeField(blank=True, help_text='Time at which its end was processed.', null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['starts_at', 'id'],
                'indexes': [models.Index(fields=['state', 'ends_at'], name='reservation_open')],
                'constraints': [models.CheckConstraint(condition=models.Q(('ends_at__gt', models.F('starts_at'))), name='reservation_lasts')],
            },
        ),
    ]
