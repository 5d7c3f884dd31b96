import django.db.models.deletion
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
            name='JoinRequest',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='join_requests', to='accounts.team')),
                ('team_name', models.CharField(help_text='Name of the team, for people.', max_length=80)),
                ('requester', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='join_requests', to=settings.AUTH_USER_MODEL)),
                ('message', models.TextField(blank=True, help_text="Message of the requester to the owners of the team.", max_length=1000)),
                ('state', models.CharField(choices=[('open', 'Open'), ('approved', 'Approved'), ('denied', 'Denied'), ('cancelled', 'Cancelled'), ('expired', 'Expired')], default='open', max_length=10)),
                ('role', models.CharField(blank=True, max_length=10)),
                ('decided_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('decided_at', models.DateTimeField(blank=True, help_text='When it was decided.', null=True)),
                ('decision_note', models.TextField(blank=True, help_text='Note of the person who decided.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField()),
            ],
            options={
                'ordering': ['-created_at', '-id'],
                'indexes': [models.Index(fields=['state', 'created_at'], name='join_request_open')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state', 'open')), fields=('team', 'requester'), name='join_request_once')],
            },
        ),
    ]
