import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '__first__'),
    ]

    operations = [
        migrations.CreateModel(
            name='UserDotfiles',
            fields=[
                ('owner', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='dotfiles', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('url', models.CharField(max_length=500)),
                ('ref', models.CharField(blank=True, max_length=200)),
                ('secret', models.CharField(blank=True, max_length=64)),
                ('changed_at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
        ),
    ]
