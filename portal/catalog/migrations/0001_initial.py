import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('environments', '0001_initial'),
        ('inventory', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Flavor',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('enabled', models.BooleanField(default=True)),
                ('position', models.PositiveIntegerField(default=100, help_text='Position in lists, lowest first.', validators=[django.core.validators.MaxValueValidator(2147483647)])),
                ('restricted', models.BooleanField(default=False)),
                ('deprecated', models.BooleanField(default=False, help_text='Still available, but marked. The successor is suggested instead.')),
                ('default_lifetime_hours', models.PositiveIntegerField(blank=True, help_text='Default hours until a workspace stops; 0: no end.', null=True, validators=[django.core.validators.MaxValueValidator(8784)])),
                ('max_lifetime_hours', models.PositiveIntegerField(blank=True, help_text='Maximum hours, extensions included; 0: no end.', null=True, validators=[django.core.validators.MaxValueValidator(8784)])),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('deleted_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('slug', models.CharField(max_length=60, validators=[django.core.validators.RegexValidator('^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\\Z', 'Use lower-case letters, digits and hyphens. Start and end with a letter or digit.')])),
                ('successor', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='predecessors', to='catalog.flavor')),
                ('name', models.CharField(max_length=80)),
                ('description', models.CharField(blank=True, max_length=200)),
                ('cpu_milli', models.PositiveIntegerField(validators=[django.core.validators.MinValueValidator(100), django.core.validators.MaxValueValidator(2147483647)])),
                ('memory_mib', models.PositiveIntegerField(validators=[django.core.validators.MinValueValidator(128), django.core.validators.MaxValueValidator(2147483647)])),
                ('disk_mib', models.PositiveIntegerField(default=0, validators=[django.core.validators.MaxValueValidator(2147483647)])),
                ('nodes', models.PositiveIntegerField(default=1, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(64)])),
                ('accelerator_count', models.PositiveIntegerField(default=0, validators=[django.core.validators.MaxValueValidator(64)])),
                ('accelerator_model', models.CharField(blank=True, max_length=80)),
                ('accelerator_models', models.JSONField(blank=True, default=list, help_text='Several suitable models, instead of one.')),
                ('accelerator_memory_mib', models.PositiveIntegerField(default=0, help_text='Minimum memory of a device; for a share, its memory.', validators=[django.core.validators.MaxValueValidator(2147483647)])),
                ('accelerator_milli', models.PositiveIntegerField(default=1000, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000)])),
                ('mig_profile', models.CharField(blank=True, help_text='MIG instances of this profile, e.g. 1g.10gb.', max_length=40)),
                ('within', models.CharField(choices=[('node', 'Same node'), ('numa', 'Same NUMA node'), ('island', 'Same NVLink island')], default='node', help_text='Topology that several accelerators must share. Closer placements are always preferred.', max_length=10)),
                ('preemptible', models.BooleanField(default=True, help_text='Can be preempted after the minimum run time, with notice.')),
                ('work_lost', models.CharField(blank=True, choices=[('always', 'Always: work starts over, as for a batch job'), ('accelerated', 'With accelerators: work on them starts over'), ('never', 'Never: work continues from its files')], help_text='When a preemption loses work of this size; empty: as the template.', max_length=12)),
                ('expected_hours', models.FloatField(default=8, help_text='Expected run time, for estimates.', validators=[django.core.validators.MinValueValidator(0.016666666666666666), django.core.validators.MaxValueValidator(720)])),
                ('price_cents', models.PositiveIntegerField(blank=True, help_text="Price per hour with its accelerators, in hundredths of the site's currency.", null=True, validators=[django.core.validators.MaxValueValidator(100000000)])),
                ('pool', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='flavors', to='inventory.pool')),
                ('teams', models.ManyToManyField(blank=True, related_name='offered_flavors', to='accounts.team')),
            ],
            options={
                'ordering': ['position', 'name'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('deleted_at', None)), fields=('slug',), name='flavor_slug_unique', violation_error_message='Slug already in use. Choose another.'), models.CheckConstraint(condition=models.Q(('mig_profile', ''), ('within', 'node'), _connector='OR'), name='flavor_mig_has_no_bond', violation_error_message='MIG instances can only share the node. Choose “Same node”.')],
            },
        ),
        migrations.CreateModel(
            name='Template',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('enabled', models.BooleanField(default=True)),
                ('position', models.PositiveIntegerField(default=100, help_text='Position in lists, lowest first.', validators=[django.core.validators.MaxValueValidator(2147483647)])),
                ('restricted', models.BooleanField(default=False)),
                ('deprecated', models.BooleanField(default=False, help_text='Still available, but marked. The successor is suggested instead.')),
                ('default_lifetime_hours', models.PositiveIntegerField(blank=True, help_text='Default hours until a workspace stops; 0: no end.', null=True, validators=[django.core.validators.MaxValueValidator(8784)])),
                ('max_lifetime_hours', models.PositiveIntegerField(blank=True, help_text='Maximum hours, extensions included; 0: no end.', null=True, validators=[django.core.validators.MaxValueValidator(8784)])),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('deleted_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('slug', models.CharField(max_length=81, validators=[django.core.validators.RegexValidator('^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:_[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)?\\Z', 'Use lower-case letters, digits and hyphens. Start and end with a letter or digit.')])),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='templates', to='accounts.team')),
                ('successor', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='predecessors', to='catalog.template')),
                ('name', models.CharField(max_length=80)),
                ('description', models.CharField(blank=True, max_length=200)),
                ('icon', models.CharField(blank=True, help_text='Name of a symbol in the icon sprite.', max_length=40)),
                ('program', models.CharField(help_text='Program that a node must have, as reported by its inventory.', max_length=80)),
                ('install_hint', models.CharField(blank=True, help_text='Instructions for operators if the program is missing.', max_length=200)),
                ('min_cuda', models.CharField(blank=True, help_text='CUDA version of the image or environment, such as 12.4.', max_length=6, validators=[django.core.validators.RegexValidator('^1[1-9]\\.\\d{1,2}$', 'Enter a version such as 12.4.')])),
                ('min_compute_capability', models.CharField(blank=True, choices=[('7.0', '7.0'), ('7.5', '7.5'), ('8.0', '8.0'), ('8.6', '8.6'), ('8.7', '8.7'), ('8.9', '8.9'), ('9.0', '9.0'), ('10.0', '10.0'), ('10.3', '10.3'), ('11.0', '11.0'), ('12.0', '12.0'), ('12.1', '12.1')], help_text='Minimum for a device.', max_length=5)),
                ('environment', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='templates', to='environments.environment')),
                ('argv', models.JSONField(default=list)),
                ('env', models.JSONField(blank=True, default=dict)),
                ('startup', models.TextField(blank=True, help_text=(
'Shell script that runs before the program, in the same sandbox. If it fails, the '
'start fails.'
), max_length=8000)),
                ('ready_path', models.CharField(default='/', help_text='Path that responds once the program is ready.', max_length=200)),
                ('open_path', models.CharField(default='/', help_text='Path that opens in the browser.', max_length=200)),
                ('upstream_auth', models.CharField(choices=[('none', 'None'), ('bearer', 'Authorization: Bearer …'), ('code-server', 'Cookie of code-server')], default='none', help_text='Credentials that the front door adds to requests to the program.', max_length=20)),
                ('service_workers', models.BooleanField(default=False, help_text='Whether the app may install service workers, which outlive the page and a restart.')),
                ('egress', models.CharField(blank=True, choices=[('', 'As the pool allows'), ('list', 'Only listed hosts'), ('none', 'Nothing')], help_text='Maximum network access of workspaces.', max_length=4)),
                ('egress_allow', models.TextField(blank=True, help_text='Hosts such as packages.example or *.example.org, and networks such as 10.1.0.0/16.', max_length=4000)),
                ('git_url', models.CharField(blank=True, help_text='Git repository that workspaces clone, unless they set another.', max_length=500)),
                ('git_ref', models.CharField(blank=True, help_text='Branch, tag or commit of the repository; empty for the default branch.', max_length=200)),
                ('git_secret', models.CharField(blank=True, help_text='Secret of the template or team with access to the repository.', max_length=64)),
                ('dotfiles_url', models.CharField(blank=True, help_text='Dotfiles for users without their own.', max_length=500)),
                ('mounts', models.JSONField(blank=True, default=list, help_text='Node folders, mounted at /data/NAME; NAME:rw allows writing.')),
                ('activity', models.CharField(blank=True, choices=[('', 'None: only CPU, GPUs and commands'), ('jupyter', 'Jupyter: kernels and terminals'), ('marimo', 'marimo'), ('code-server', 'code-server')], help_text='How the agent queries the activity of the app.', max_length=20)),
                ('start_timeout_s', models.PositiveIntegerField(default=120, help_text='Maximum duration of a start, in seconds.', validators=[django.core.validators.MinValueValidator(5), django.core.validators.MaxValueValidator(3600)])),
                ('stop_timeout_s', models.PositiveIntegerField(default=10, help_text='Grace period for the program to stop, in seconds.', validators=[django.core.validators.MaxValueValidator(300)])),
                ('work_lost', models.CharField(choices=[('always', 'Always: work starts over, as for a batch job'), ('accelerated', 'With accelerators: work on them starts over'), ('never', 'Never: work continues from its files')], default='always', help_text='When a preemption loses work. Users can override this.', max_length=12)),
                ('teams', models.ManyToManyField(blank=True, related_name='offered_templates', to='accounts.team')),
            ],
            options={
                'ordering': ['position', 'name'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('deleted_at', None)), fields=('slug',), name='template_slug_unique', violation_error_message='Slug already in use. Choose another.')],
            },
        ),
    ]
