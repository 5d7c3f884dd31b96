import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('catalog', '0001_initial'),
        ('inventory', '0001_initial'),
        ('workspaces', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Absence',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('since', models.DateTimeField(db_index=True)),
                ('seconds', models.FloatField()),
            ],
        ),
        migrations.CreateModel(
            name='ActivityChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('workspace', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='activity_changes', to='workspaces.workspace')),
                ('generation', models.PositiveIntegerField()),
                ('at', models.DateTimeField(db_index=True)),
                ('active', models.CharField(blank=True, max_length=80, null=True)),
            ],
            options={
                'indexes': [models.Index(fields=['workspace', 'at'], name='activity_change_workspace')],
            },
        ),
        migrations.CreateModel(
            name='BestClock',
            fields=[
                ('model', models.CharField(max_length=80, primary_key=True, serialize=False)),
                ('clock_mhz', models.PositiveIntegerField()),
                ('seen_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='Discontent',
            fields=[
                ('workspace', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='discontent', serialize=False, to='workspaces.workspace')),
                ('generation', models.PositiveIntegerField()),
                ('score', models.PositiveSmallIntegerField()),
                ('reason', models.JSONField(default=dict)),
                ('since', models.DateTimeField()),
                ('observed_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='HomeStay',
            fields=[
                ('place', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='stay', serialize=False, to='workspaces.homeplace')),
                ('archive', models.UUIDField(blank=True, null=True)),
                ('used_at', models.DateTimeField(blank=True, null=True)),
                ('unused_s', models.FloatField(default=0)),
                ('warned_s', models.FloatField(blank=True, null=True)),
                ('warned_at', models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='IdlePeriod',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('workspace', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='idle_periods', to='workspaces.workspace')),
                ('generation', models.PositiveIntegerField()),
                ('kind', models.CharField(choices=[('all', 'The whole workspace'), ('gpu', 'Its GPUs')], max_length=3)),
                ('began_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(db_index=True)),
            ],
            options={
                'indexes': [models.Index(fields=['workspace', 'generation'], name='idle_period_start')],
            },
        ),
        migrations.CreateModel(
            name='LastPass',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('at', models.DateTimeField()),
                ('recorded_since', models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='RebalanceProposal',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('key', models.CharField(max_length=64)),
                ('waiting', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='workspaces.workspace')),
                ('moves', models.JSONField()),
                ('reason', models.JSONField()),
                ('gain', models.PositiveIntegerField()),
                ('lost', models.PositiveBigIntegerField(default=0)),
                ('state', models.CharField(choices=[('open', 'Open'), ('applied', 'Applied'), ('dismissed', 'Dismissed'), ('withdrawn', 'Withdrawn')], default='open', max_length=9)),
                ('proposed_at', models.DateTimeField()),
                ('seen_at', models.DateTimeField()),
                ('decided_at', models.DateTimeField(blank=True, null=True)),
                ('decided_by', models.CharField(blank=True, max_length=150)),
            ],
            options={
                'ordering': ['-proposed_at', '-id'],
                'indexes': [models.Index(fields=['state', 'decided_at'], name='proposal_state_decided')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state', 'open')), fields=('key',), name='proposal_open_once')],
            },
        ),
        migrations.CreateModel(
            name='ReclaimNotice',
            fields=[
                ('workspace', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='reclaim_notice', serialize=False, to='workspaces.workspace')),
                ('generation', models.PositiveIntegerField()),
                ('ends_version', models.PositiveIntegerField()),
                ('cause', models.CharField(choices=[('lifetime', 'lifetime'), ('gpu_idle', 'gpu_idle'), ('idle', 'idle'), ('longest', 'longest'), ('schedule', 'schedule'), ('budget', 'budget'), ('release', 'release'), ('release_gpu_idle', 'release_gpu_idle')], max_length=16)),
                ('warned_at', models.DateTimeField()),
                ('due_at', models.DateTimeField(db_index=True)),
                ('reason', models.JSONField(default=dict)),
            ],
        ),
        migrations.CreateModel(
            name='ReclaimPolicy',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('scope', models.CharField(choices=[('site', 'The site'), ('pool', 'Pool'), ('template', 'Template'), ('flavor', 'Flavor'), ('team', 'Team')], max_length=8)),
                ('pool', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='reclaim_policy', to='inventory.pool')),
                ('template', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='reclaim_policy', to='catalog.template')),
                ('flavor', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='reclaim_policy', to='catalog.flavor')),
                ('team', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='reclaim_policy', to='accounts.team')),
                ('idle_minutes', models.PositiveIntegerField(blank=True, help_text='Idle limit of workspaces without accelerators; 0: never.', null=True, validators=[django.core.validators.MaxValueValidator(86400)])),
                ('idle_gpu_minutes', models.PositiveIntegerField(blank=True, help_text='Idle limit of workspaces with accelerators; 0: never.', null=True, validators=[django.core.validators.MaxValueValidator(86400)])),
                ('gpu_unused_minutes', models.PositiveIntegerField(blank=True, help_text='Limit with all GPUs at 0 %, whatever else runs; 0: never.', null=True, validators=[django.core.validators.MaxValueValidator(86400)])),
                ('release_gpu_minutes', models.PositiveIntegerField(blank=True, help_text=(
'Idle limit after which GPUs are released and the app restarts without them; 0: '
'never.'
), null=True, validators=[django.core.validators.MaxValueValidator(86400)])),
                ('longest_hours', models.PositiveIntegerField(blank=True, help_text='Maximum lifetime, extensions included; 0: no limit.', null=True, validators=[django.core.validators.MaxValueValidator(8784)])),
                ('notice_minutes', models.PositiveIntegerField(blank=True, help_text='Minimum notice before a stop.', null=True, validators=[django.core.validators.MaxValueValidator(1440)])),
                ('archive_days', models.PositiveIntegerField(blank=True, help_text='Unused time after which home folders are archived and emptied; 0: never.', null=True, validators=[django.core.validators.MaxValueValidator(3650)])),
                ('delete_days', models.PositiveIntegerField(blank=True, help_text='Time in an archive after which administrators can delete a home folder; 0: never.', null=True, validators=[django.core.validators.MaxValueValidator(3650)])),
                ('stop_when_spent', models.BooleanField(blank=True, help_text="Stop workspaces with accelerators when the team's GPU-hours are spent.", null=True)),
                ('zone', models.CharField(blank=True, help_text='Time zone, such as Europe/Berlin.', max_length=64)),
                ('days', models.JSONField(blank=True, default=list)),
                ('work_from', models.TimeField(blank=True, help_text='Start of working hours.', null=True)),
                ('work_until', models.TimeField(blank=True, help_text='End of working hours.', null=True)),
                ('after_hours_minutes', models.PositiveIntegerField(blank=True, help_text='Idle limit outside these hours; applies if it is shorter.', null=True, validators=[django.core.validators.MaxValueValidator(86400)])),
                ('stop_at', models.TimeField(blank=True, help_text='Time at which unused workspaces stop.', null=True)),
                ('start_at', models.TimeField(blank=True, help_text='Time at which these workspaces start again, except on holidays.', null=True)),
                ('holidays', models.JSONField(blank=True, default=list)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
            ],
            options={
                'verbose_name_plural': 'reclaim policies',
                'constraints': [models.UniqueConstraint(condition=models.Q(('scope', 'site')), fields=('scope',), name='reclaim_policy_one_site'), models.CheckConstraint(condition=models.Q(models.Q(('flavor', None), ('pool', None), ('scope', 'site'), ('team', None), ('template', None)), models.Q(('flavor', None), ('pool__isnull', False), ('scope', 'pool'), ('team', None), ('template', None)), models.Q(('flavor', None), ('pool', None), ('scope', 'template'), ('team', None), ('template__isnull', False)), models.Q(('flavor__isnull', False), ('pool', None), ('scope', 'flavor'), ('team', None), ('template', None)), models.Q(('flavor', None), ('pool', None), ('scope', 'team'), ('team__isnull', False), ('template', None)), _connector='OR'), name='reclaim_policy_scope')],
            },
        ),
        migrations.CreateModel(
            name='ScheduledStop',
            fields=[
                ('workspace', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='scheduled_stop', serialize=False, to='workspaces.workspace')),
                ('generation', models.PositiveIntegerField()),
                ('stopped_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='WorkPace',
            fields=[
                ('workspace', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='pace', serialize=False, to='workspaces.workspace')),
                ('generation', models.PositiveIntegerField()),
                ('paces', models.TextField(default='{}')),
                ('slow_since', models.DateTimeField(blank=True, db_index=True, null=True)),
                ('observed_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='WorkspaceActivity',
            fields=[
                ('workspace', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='reclaim_activity', serialize=False, to='workspaces.workspace')),
                ('generation', models.PositiveIntegerField()),
                ('observed_at', models.DateTimeField()),
                ('idle_s', models.FloatField(default=0)),
                ('gpu_idle_s', models.FloatField(default=0)),
                ('kept_until', models.DateTimeField(blank=True, null=True)),
                ('unused_gpus', models.PositiveSmallIntegerField(default=0)),
                ('unused_notified', models.PositiveIntegerField(default=0)),
                ('active', models.CharField(blank=True, max_length=80, null=True)),
                ('report', models.TextField(default='{}')),
                ('signals', models.TextField(default='[]')),
            ],
        ),
    ]
