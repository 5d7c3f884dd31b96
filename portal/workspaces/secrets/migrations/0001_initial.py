import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('accounts', '__first__'),
        ('catalog', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Secret',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to='accounts.team')),
                ('template', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to='catalog.template')),
                ('name', models.CharField(max_length=64)),
                ('kind', models.CharField(choices=[('env', 'Environment variable'), ('file', 'File')], default='env', help_text='Whether workspaces get it as an environment variable or as a file.', max_length=4)),
                ('sealed', models.TextField(editable=False)),
                ('vault_path', models.CharField(blank=True, default='', max_length=400)),
                ('vault_key', models.CharField(blank=True, default='', max_length=100)),
                ('size_bytes', models.PositiveIntegerField()),
                ('version', models.PositiveIntegerField(default=1)),
                ('description', models.CharField(blank=True, max_length=200)),
                ('everywhere', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('changed_at', models.DateTimeField(default=django.utils.timezone.now, editable=False, help_text='When it was last changed.')),
                ('changed_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('delivered_at', models.DateTimeField(blank=True, help_text='When it was last delivered to a workspace.', null=True)),
                ('delivered_to', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['name', 'pk'],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('team__isnull', True), ('template__isnull', True), ('user__isnull', False)), models.Q(('team__isnull', False), ('template__isnull', True), ('user__isnull', True)), models.Q(('team__isnull', True), ('template__isnull', False), ('user__isnull', True)), _connector='OR'), name='secret_of_one_holder'), models.CheckConstraint(condition=models.Q(models.Q(('vault_key', ''), ('vault_path', ''), models.Q(('sealed', ''), _negated=True)), models.Q(('sealed', ''), models.Q(('vault_path', ''), _negated=True), models.Q(('vault_key', ''), _negated=True)), _connector='OR'), name='secret_here_or_in_vault'), models.UniqueConstraint(fields=('user', 'name'), name='secret_of_user_unique'), models.UniqueConstraint(fields=('team', 'name'), name='secret_of_team_unique'), models.UniqueConstraint(fields=('template', 'name'), name='secret_of_template_unique')],
            },
        ),
    ]
