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
            name='TrustRule',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('account', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trust_rules', to=settings.AUTH_USER_MODEL)),
                ('name', models.CharField(max_length=80)),
                ('issuer', models.CharField(db_index=True, help_text='URL of the issuer that signs the tokens.', max_length=255)),
                ('audience', models.CharField(help_text='Audience that the tokens must have.', max_length=255)),
                ('conditions', models.JSONField(default=list)),
                ('scopes', models.JSONField(default=list)),
                ('lifetime_s', models.PositiveIntegerField(help_text='Lifetime of a token after its exchange and each renewal, in seconds.')),
                ('max_lifetime_s', models.PositiveIntegerField(help_text='Total lifetime of a token with all renewals, in seconds.')),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('last_used_at', models.DateTimeField(blank=True, help_text='When it was last used.', null=True)),
            ],
            options={
                'ordering': ['created_at', 'id'],
            },
        ),
        migrations.CreateModel(
            name='Exchange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(editable=False, max_length=64, unique=True)),
                ('key_digest', models.CharField(blank=True, editable=False, max_length=64)),
                ('rule', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='exchanges', to='service_accounts.trustrule')),
                ('token', models.OneToOneField(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='exchange', to='accounts.apitoken')),
                ('at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField(db_index=True)),
            ],
        ),
    ]
