import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('inventory', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='GpuDay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField()),
                ('team', models.CharField(blank=True, max_length=60)),
                ('dimension', models.CharField(choices=[('all', 'Everything'), ('team', 'Team'), ('user', 'User'), ('flavor', 'Flavor'), ('model', 'Model'), ('node', 'Node')], max_length=6)),
                ('key', models.CharField(blank=True, max_length=255)),
                ('capacity', models.BigIntegerField(default=0)),
                ('measured', models.BigIntegerField(default=0)),
                ('used', models.BigIntegerField(default=0)),
                ('held', models.BigIntegerField(default=0)),
                ('held_measured', models.BigIntegerField(default=0)),
                ('held_used', models.BigIntegerField(default=0)),
                ('reclaimed', models.BigIntegerField(default=0)),
                ('waited', models.BigIntegerField(default=0)),
                ('cost', models.BigIntegerField(default=0)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('team', 'dimension', 'day', 'key'), name='gpu_day_once')],
            },
        ),
        migrations.CreateModel(
            name='GpuMonth',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('month', models.DateField()),
                ('made_of', models.BigIntegerField()),
                ('team', models.CharField(blank=True, max_length=60)),
                ('dimension', models.CharField(choices=[('all', 'Everything'), ('team', 'Team'), ('user', 'User'), ('flavor', 'Flavor'), ('model', 'Model'), ('node', 'Node')], max_length=6)),
                ('key', models.CharField(blank=True, max_length=255)),
                ('capacity', models.BigIntegerField()),
                ('measured', models.BigIntegerField()),
                ('used', models.BigIntegerField()),
                ('held', models.BigIntegerField()),
                ('held_measured', models.BigIntegerField()),
                ('held_used', models.BigIntegerField()),
                ('reclaimed', models.BigIntegerField()),
                ('waited', models.BigIntegerField()),
                ('cost', models.BigIntegerField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('team', 'dimension', 'month', 'key'), name='gpu_month_once')],
            },
        ),
        migrations.CreateModel(
            name='StartCount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('figure', models.CharField(choices=[('requests', 'Requests'), ('starts', 'Starts'), ('failures', 'Failures'), ('ready', 'Time from request to ready')], max_length=8)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.team')),
                ('key', models.CharField(blank=True, max_length=40)),
                ('count', models.BigIntegerField(default=0)),
                ('seconds', models.FloatField(default=0)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('figure', 'team', 'key'), name='start_count_once')],
            },
        ),
        migrations.CreateModel(
            name='MonthlyReport',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.team')),
                ('month', models.DateField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('month', 'team'), name='monthly_report_once')],
            },
        ),
        migrations.CreateModel(
            name='StartSample',
            fields=[
                ('start_s', models.BigIntegerField(primary_key=True, serialize=False)),
                ('starts', models.BigIntegerField()),
                ('failures', models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name='PoolSample',
            fields=[
                ('pk', models.CompositePrimaryKey('start_s', 'pool_id', blank=True, editable=False, primary_key=True, serialize=False)),
                ('start_s', models.BigIntegerField()),
                ('in_use', models.PositiveIntegerField()),
                ('idle', models.PositiveIntegerField()),
                ('free', models.PositiveIntegerField()),
                ('checking', models.PositiveIntegerField()),
                ('maintenance', models.PositiveIntegerField()),
                ('out_of_service', models.PositiveIntegerField()),
                ('pool', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='inventory.pool')),
            ],
        ),
    ]
