"""What a template needs of driver and device is a least: the names say so."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("catalog", "0003_stack")]

    operations = [
        migrations.RenameField("template", "cuda_version", "min_cuda"),
        migrations.RenameField("template", "compute_capability", "min_compute_capability"),
    ]
