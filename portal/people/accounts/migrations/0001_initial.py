import django.core.validators
import django.db.models.deletion
import django.db.models.functions.text
import django.utils.timezone
import portal.people.accounts.models
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        migrations.CreateModel(
            name='FailureWindow',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=120, unique=True)),
                ('began_at', models.DateTimeField(db_index=True)),
                ('count', models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name='Team',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('slug', models.CharField(error_messages={'unique': 'Slug already in use. Choose another.'}, max_length=40, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\\Z', 'Use lower-case letters, digits and hyphens. Start and end with a letter or digit.')])),
                ('name', models.CharField(max_length=80)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('egress', models.CharField(blank=True, choices=[('', 'As the pool allows'), ('list', 'Only listed hosts'), ('none', 'Nothing')], help_text='Maximum network access of workspaces.', max_length=4)),
                ('egress_allow', models.TextField(blank=True, help_text='Hosts such as packages.example or *.example.org, and networks such as 10.1.0.0/16.', max_length=4000)),
                ('member_shares', models.BooleanField(default=True, help_text='Whether members take turns in the queue: the one who used least comes first.')),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('archived_at', models.DateTimeField(blank=True, editable=False, help_text='When it was archived; null for an active team.', null=True)),
                ('deletion_started_at', models.DateTimeField(blank=True, editable=False, help_text='When its deletion started; null for other teams.', null=True)),
                ('deleted_at', models.DateTimeField(blank=True, editable=False, null=True)),
            ],
            options={
                'ordering': ['slug'],
            },
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('username', models.CharField(error_messages={'unique': 'Name already in use. Choose another.'}, max_length=32, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?\\Z', (
'Use lower-case letters, digits, dots, hyphens and underscores. Start and end with a '
'letter or digit.'
))], verbose_name='name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='e-mail')),
                ('is_operator', models.BooleanField(default=False, help_text='Manages pools.')),
                ('is_approver', models.BooleanField(default=False, help_text='Decides quota requests.')),
                ('is_auditor', models.BooleanField(default=False, help_text='Has read-only access to everything.')),
                ('owning_team', models.ForeignKey(blank=True, editable=False, help_text='The team that a service account belongs to.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='service_accounts', to='accounts.team')),
                ('description', models.CharField(blank=True, editable=False, max_length=200)),
                ('mail_notices', models.BooleanField(default=True, help_text='Notices are also sent by e-mail.')),
                ('email_confirmed', models.BooleanField(default=False, editable=False)),
                ('linked', models.BooleanField(default=False, editable=False)),
                ('session_salt', models.CharField(blank=True, default='', editable=False, max_length=32)),
                ('mfa_since', models.DateTimeField(blank=True, editable=False, null=True)),
                ('deactivated_at', models.DateTimeField(blank=True, editable=False, help_text='When the account was deactivated.', null=True)),
                ('deleted_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'constraints': [models.UniqueConstraint(django.db.models.functions.text.Lower('email'), condition=models.Q(('email', ''), _negated=True), name='user_email_unique', violation_error_message='E-mail address already in use.'), models.CheckConstraint(condition=models.Q(('is_auditor', False), models.Q(('is_approver', False), ('is_operator', False), ('is_superuser', False)), _connector='OR'), name='user_auditor_holds_no_other_role'), models.CheckConstraint(condition=models.Q(('owning_team', None), models.Q(('email', ''), ('is_approver', False), ('is_auditor', False), ('is_operator', False), ('is_superuser', False)), _connector='OR'), name='user_service_account_holds_no_role')],
            },
            managers=[
                ('objects', portal.people.accounts.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tokens', to=settings.AUTH_USER_MODEL)),
                ('name', models.CharField(max_length=80)),
                ('prefix', models.CharField(editable=False, help_text='First characters of the token, to recognise it.', max_length=16)),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('scopes', models.JSONField(default=list)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('renewable_until', models.DateTimeField(blank=True, help_text="Until when a job's token can be renewed; null for other tokens.", null=True)),
                ('last_used_at', models.DateTimeField(blank=True, help_text='When it was last used.', null=True)),
                ('last_used_from', models.GenericIPAddressField(blank=True, help_text='Address from which it was last used; null if never or unknown.', null=True)),
                ('networks', models.JSONField(blank=True, default=list, editable=False)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='tokens_made', to=settings.AUTH_USER_MODEL)),
                ('replaces', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='replaced_by', to='accounts.apitoken')),
            ],
            options={
                'ordering': ['-created_at'],
                'indexes': [models.Index(fields=['-created_at', 'id'], name='token_newest')],
            },
        ),
        migrations.CreateModel(
            name='Delegation',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('approver', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='delegations_given', to=settings.AUTH_USER_MODEL)),
                ('delegate', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='delegations_held', to=settings.AUTH_USER_MODEL)),
                ('starts_at', models.DateTimeField()),
                ('ends_at', models.DateTimeField()),
            ],
            options={
                'ordering': ['-starts_at'],
                'constraints': [models.CheckConstraint(condition=models.Q(('ends_at__gt', models.F('starts_at'))), name='delegation_lasts'), models.CheckConstraint(condition=models.Q(('approver', models.F('delegate')), _negated=True), name='delegation_to_another')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='accounts.team')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('role', models.CharField(choices=[('viewer', 'Viewer'), ('member', 'Member'), ('owner', 'Owner')], default='member', max_length=10)),
                ('joined_at', models.DateTimeField(auto_now_add=True, help_text='When it joined.')),
            ],
            options={
                'ordering': ['user__username'],
                'constraints': [models.UniqueConstraint(fields=('team', 'user'), name='membership_unique')],
            },
        ),
        migrations.CreateModel(
            name='UserSession',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='sessions', to=settings.AUTH_USER_MODEL)),
                ('key', models.CharField(editable=False, max_length=40, unique=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('last_seen_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('address', models.GenericIPAddressField(blank=True, null=True)),
                ('user_agent', models.CharField(blank=True, max_length=200)),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.AddField(
            model_name='team',
            name='members',
            field=models.ManyToManyField(related_name='teams', through='accounts.Membership', to=settings.AUTH_USER_MODEL),
        ),
    ]
