"""What was in the room of quotas; quotas.0004 has renamed the tables."""

from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('quotas', '0004_tables_renamed'),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name='QueueState',
                    fields=[
                        ('id', models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                        ('promises', models.PositiveBigIntegerField(default=0)),
                        ('seen_event', models.PositiveBigIntegerField(default=0)),
                        ('decided_at', models.DateTimeField(blank=True, null=True)),
                        ('took_ms', models.PositiveIntegerField(default=0)),
                    ],
                    options={
                        'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='queue_state_single')],
                    },
                ),
    
            ],
        ),
    ]
