from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('reports', '0003_monthly_reports'),
    ]

    operations = [
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
    ]
