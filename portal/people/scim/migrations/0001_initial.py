import django.db.models.deletion
import django.db.models.functions.text
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '__first__'),
    ]

    operations = [
        migrations.CreateModel(
            name='AppliedRules',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64)),
                ('applied_at', models.DateTimeField(auto_now=True)),
            ],
        ),
        migrations.CreateModel(
            name='ScimUser',
            fields=[
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='scim', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('user_name', models.CharField(max_length=254, unique=True)),
                ('external_id', models.CharField(blank=True, db_index=True, max_length=255)),
                ('display_name', models.CharField(blank=True, max_length=200)),
                ('email_type', models.CharField(default='work', max_length=64)),
                ('email_primary', models.BooleanField(default=True)),
                ('switched_off', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('changed_at', models.DateTimeField(auto_now=True)),
                ('removed_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'ordering': ['user__username'],
            },
        ),
        migrations.CreateModel(
            name='ScimGroup',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('display_name', models.CharField(max_length=255)),
                ('external_id', models.CharField(blank=True, db_index=True, max_length=255)),
                ('version', models.PositiveBigIntegerField(default=1)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('changed_at', models.DateTimeField(auto_now=True)),
                ('members', models.ManyToManyField(related_name='groups', to='scim.scimuser')),
            ],
            options={
                'ordering': ['display_name'],
                'constraints': [models.UniqueConstraint(django.db.models.functions.text.Lower('display_name'), name='scim_group_name_unique')],
            },
        ),
    ]
