"""What was in the room of quotas; quotas.0004 has renamed the table."""

import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_mail_notices'),
        ('quotas', '0004_tables_renamed'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name='Delegation',
                    fields=[
                        ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                        ('starts_at', models.DateTimeField()),
                        ('ends_at', models.DateTimeField()),
                        ('approver', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='delegations_given', to=settings.AUTH_USER_MODEL)),
                        ('delegate', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='delegations_held', to=settings.AUTH_USER_MODEL)),
                    ],
                    options={
                        'ordering': ['-starts_at'],
                        'constraints': [models.CheckConstraint(condition=models.Q(('ends_at__gt', models.F('starts_at'))), name='delegation_lasts'), models.CheckConstraint(condition=models.Q(('approver', models.F('delegate')), _negated=True), name='delegation_to_another')],
                    },
                ),
    
            ],
        ),
    ]
