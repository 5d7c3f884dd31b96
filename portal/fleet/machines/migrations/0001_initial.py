import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '__first__'),
        ('inventory', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Machine',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=63, unique=True)),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='machines', to='inventory.pool')),
                ('state', models.CharField(choices=[('active', 'Joined'), ('left', 'Left'), ('revoked', 'Revoked')], default='active', max_length=8)),
                ('signing_key', models.CharField(max_length=64)),
                ('password_digest', models.CharField(editable=False, max_length=64)),
                ('certificate_serial', models.CharField(max_length=60)),
                ('certificate_expires_at', models.DateTimeField(help_text='When the certificate expires. It is renewed before.')),
                ('former_signing_key', models.CharField(blank=True, max_length=64)),
                ('former_password_digest', models.CharField(blank=True, editable=False, max_length=64)),
                ('former_certificate_serial', models.CharField(blank=True, max_length=60)),
                ('former_until', models.DateTimeField(blank=True, null=True)),
                ('gateway_host', models.CharField(max_length=255)),
                ('gateway_port', models.PositiveIntegerField()),
                ('machine_id', models.CharField(db_index=True, max_length=128)),
                ('instance', models.CharField(max_length=128)),
                ('version', models.CharField(help_text='Version of Berth on the machine.', max_length=40)),
                ('clock_off_s', models.FloatField(default=0.0)),
                ('boot', models.CharField(blank=True, max_length=128)),
                ('former_boot', models.CharField(blank=True, max_length=128)),
                ('heard_at', models.DateTimeField(blank=True, help_text='Time of the last contact.', null=True)),
                ('said_s', models.FloatField(default=0.0, help_text='Unix time of the machine at its last contact.')),
                ('cloned_at', models.DateTimeField(blank=True, null=True)),
                ('joined_at', models.DateTimeField(help_text='When it joined.')),
                ('rotated_at', models.DateTimeField(blank=True, help_text='When the certificate was last renewed; null before the first renewal.', null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='JoinToken',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('pool', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='join_tokens', to='inventory.pool')),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField()),
                ('used_at', models.DateTimeField(blank=True, null=True)),
                ('machine', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='tokens', to='machines.machine')),
            ],
            options={
                'ordering': ['-created_at', '-id'],
            },
        ),
    ]
