import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Budget',
            fields=[
                ('team', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='budget', serialize=False, to='accounts.team')),
                ('amount_cents', models.PositiveBigIntegerField()),
                ('blocks', models.BooleanField(default=False)),
                ('month', models.DateField(null=True)),
                ('spent', models.BigIntegerField(default=0)),
                ('warned', models.PositiveSmallIntegerField(default=0)),
                ('summed_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='LedgerAccount',
            fields=[
                ('team', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='ledger', serialize=False, to='accounts.team')),
                ('period', models.CharField(choices=[('day', 'Every day'), ('week', 'Every week'), ('month', 'Every 30 days')], default='month', max_length=5)),
                ('quota', models.PositiveBigIntegerField()),
                ('period_started_at', models.DateTimeField()),
                ('charged_until', models.DateTimeField()),
                ('credit', models.PositiveBigIntegerField(default=0)),
                ('spent', models.PositiveBigIntegerField(default=0)),
                ('carry', models.PositiveIntegerField(default=0)),
                ('unbilled', models.PositiveBigIntegerField(default=0)),
                ('warned', models.PositiveSmallIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='LedgerEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('account', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='entries', to='ledger.ledgeraccount')),
                ('at', models.DateTimeField(help_text='When it was booked.')),
                ('kind', models.CharField(choices=[('opened', 'Opened'), ('changed', 'Grant changed'), ('refill', 'Refilled'), ('credit', 'Credit'), ('spent', 'Spent')], max_length=8)),
                ('amount', models.BigIntegerField(help_text='Change of the balance in weighted milli-GPU-seconds; negative if it was spent.')),
                ('balance', models.BigIntegerField(help_text='Balance after the entry, in weighted milli-GPU-seconds.')),
                ('actor_label', models.CharField(max_length=80)),
                ('note', models.CharField(blank=True, max_length=200)),
            ],
            options={
                'ordering': ['-at', '-id'],
                'indexes': [models.Index(fields=['account', '-at'], name='ledger_entry_account')],
            },
        ),
    ]
