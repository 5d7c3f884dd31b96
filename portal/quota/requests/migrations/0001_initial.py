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
        ('workspaces', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='AutoApproveRule',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='auto_approve_rules', to='accounts.team')),
                ('resource', models.CharField(max_length=80, validators=[portal.quota.limits.resources.validate_resource])),
                ('amount_at_most', models.PositiveBigIntegerField(help_text='Maximum of all such grants of a team at a time.')),
                ('hours_at_most', models.PositiveIntegerField(help_text='Maximum duration that it approves, in hours.')),
                ('enabled', models.BooleanField(default=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('changed_by', models.ForeignKey(help_text='User who last created or changed the rule.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['resource', 'created_at'],
            },
        ),
        migrations.CreateModel(
            name='QuotaRequest',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='quota_requests', to='accounts.team')),
                ('requester', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='quota_requests', to=settings.AUTH_USER_MODEL)),
                ('kind', models.CharField(choices=[('quota', 'Quota of the team'), ('member_cap', 'Cap of a member'), ('ledger', 'GPU-hours')], default='quota', max_length=12)),
                ('resource', models.CharField(max_length=80)),
                ('amount', models.PositiveBigIntegerField()),
                ('until', models.DateTimeField(blank=True, help_text='Requested end; null for no end.', null=True)),
                ('note', models.TextField(max_length=2000)),
                ('workspace', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='quota_requests', to='workspaces.workspace')),
                ('state', models.CharField(choices=[('open', 'Open'), ('approved', 'Approved'), ('denied', 'Denied'), ('cancelled', 'Cancelled')], default='open', max_length=10)),
                ('decided_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('decided_at', models.DateTimeField(blank=True, help_text='When it was decided.', null=True)),
                ('decision_note', models.TextField(blank=True, help_text='Note of the person who decided.')),
                ('granted_amount', models.PositiveBigIntegerField(blank=True, help_text="Granted amount, in the resource's base unit.", null=True)),
                ('granted_until', models.DateTimeField(blank=True, help_text='End of the grant; null if there is none.', null=True)),
                ('rule', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='quota_requests.autoapproverule')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['-created_at', '-id'],
                'indexes': [models.Index(fields=['state', 'created_at'], name='quota_request_open')],
                'constraints': [models.CheckConstraint(condition=models.Q(('amount__gt', 0)), name='quota_request_asks_for_something')],
            },
        ),
    ]
