import django.core.validators
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
        ('quota_requests', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Cohort',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('slug', models.CharField(max_length=40, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\\Z', 'Use lower-case letters, digits and hyphens. Start and end with a letter or digit.')])),
                ('name', models.CharField(max_length=80)),
                ('parent', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='children', to='quotas.cohort')),
                ('weight_milli', models.PositiveIntegerField(default=1000, help_text='Weight in fair sharing, in thousandths.')),
                ('borrow_first', models.BooleanField(default=True, help_text='Whether a request borrows quota for a flavor before it tries the next one.')),
                ('preempt_first', models.BooleanField(default=False, help_text='Whether a request preempts for a flavor before it tries the next one.')),
            ],
            options={
                'ordering': ['slug'],
            },
        ),
        migrations.CreateModel(
            name='Grant',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='grants', to='accounts.team')),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='grants', to=settings.AUTH_USER_MODEL)),
                ('resource', models.CharField(max_length=80, validators=[portal.quota.limits.resources.validate_resource])),
                ('amount', models.PositiveBigIntegerField()),
                ('starts_at', models.DateTimeField()),
                ('ends_at', models.DateTimeField(blank=True, null=True)),
                ('ended_at', models.DateTimeField(blank=True, help_text='Time at which its end or revocation was announced.', null=True)),
                ('warned_at', models.DateTimeField(blank=True, help_text='Time at which its coming end was announced.', null=True)),
                ('request', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='grant', to='quota_requests.quotarequest')),
            ],
            options={
                'ordering': ['-starts_at'],
                'indexes': [models.Index(condition=models.Q(('ended_at', None)), fields=['team', 'resource'], name='grant_open')],
            },
        ),
        migrations.CreateModel(
            name='MemberCap',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='member_caps', to='accounts.team')),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='member_caps', to=settings.AUTH_USER_MODEL)),
                ('resource', models.CharField(max_length=80, validators=[portal.quota.limits.resources.validate_resource])),
                ('amount', models.PositiveBigIntegerField(help_text="Maximum amount for a member, in the resource's base unit.")),
            ],
            options={
                'ordering': ['resource'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('user__isnull', False)), fields=('team', 'user', 'resource'), name='member_cap_user'), models.UniqueConstraint(condition=models.Q(('user__isnull', True)), fields=('team', 'resource'), name='member_cap_each')],
            },
        ),
        migrations.CreateModel(
            name='MemberShare',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='member_averages', to='accounts.team')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='member_averages', to=settings.AUTH_USER_MODEL)),
                ('use_avg', models.PositiveBigIntegerField(default=0)),
                ('averaged_at', models.DateTimeField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('team', 'user'), name='member_share_once')],
            },
        ),
        migrations.CreateModel(
            name='ResourceRate',
            fields=[
                ('resource', models.CharField(max_length=80, primary_key=True, serialize=False, validators=[portal.quota.limits.resources.validate_resource])),
                ('rate_milli', models.PositiveIntegerField(default=1000, help_text='Price of an hour of a whole unit, in thousandths of a GPU-hour.')),
            ],
            options={
                'ordering': ['resource'],
            },
        ),
        migrations.CreateModel(
            name='SiteLimit',
            fields=[
                ('resource', models.CharField(max_length=80, primary_key=True, serialize=False, validators=[portal.quota.limits.resources.validate_resource])),
                ('amount', models.PositiveBigIntegerField(help_text="Maximum amount for the whole site, in the resource's base unit.")),
            ],
            options={
                'ordering': ['resource'],
            },
        ),
        migrations.CreateModel(
            name='Quota',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='quotas', to='accounts.team')),
                ('cohort', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='quotas', to='quotas.cohort')),
                ('resource', models.CharField(max_length=80, validators=[portal.quota.limits.resources.validate_resource])),
                ('quota', models.PositiveBigIntegerField(default=0, help_text="Guaranteed amount, in the resource's base unit.")),
                ('borrowing_limit', models.PositiveBigIntegerField(blank=True, null=True)),
                ('lending_limit', models.PositiveBigIntegerField(blank=True, null=True)),
            ],
            options={
                'ordering': ['resource'],
                'constraints': [models.CheckConstraint(condition=models.Q(('team__isnull', True), ('cohort__isnull', True), _connector='XOR'), name='quota_of_team_or_cohort'), models.UniqueConstraint(condition=models.Q(('team__isnull', False)), fields=('team', 'resource'), name='quota_team_resource'), models.UniqueConstraint(condition=models.Q(('cohort__isnull', False)), fields=('cohort', 'resource'), name='quota_cohort_resource')],
            },
        ),
        migrations.CreateModel(
            name='TeamShare',
            fields=[
                ('team', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='share', serialize=False, to='accounts.team')),
                ('cohort', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='team_shares', to='quotas.cohort')),
                ('weight_milli', models.PositiveIntegerField(default=1000)),
                ('reclaim', models.BooleanField(default=True, help_text='Whether the team may preempt borrowers of its quota.')),
                ('borrowed_avg', models.JSONField(blank=True, default=dict)),
                ('averaged_at', models.DateTimeField(blank=True, null=True)),
            ],
        ),
    ]
