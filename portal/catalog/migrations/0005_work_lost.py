"""When work is lost that has to make room, by template and flavor."""

from django.db import migrations, models

NOTEBOOKS = ("jupyterlab", "marimo", "vscode")


def notebooks_compute_on_accelerators(apps, schema_editor):
    """The templates of the starting catalog; what others run is not known and counts as lost."""
    apps.get_model("catalog", "Template").objects.filter(slug__in=NOTEBOOKS).update(work_lost="accelerated")


class Migration(migrations.Migration):

    dependencies = [
        ('catalog', '0004_min_cuda'),
    ]

    operations = [
        migrations.AddField(
            model_name='flavor',
            name='work_lost',
            field=models.CharField(blank=True, choices=[('always', 'Always: it begins anew, as a batch command does'), ('accelerated', 'With accelerators: what computes on them begins anew'), ('never', 'Never: it goes on from its files')], help_text='When work of this size is lost if it has to make room; empty is as the template says.', max_length=12),
        ),
        migrations.AddField(
            model_name='template',
            name='work_lost',
            field=models.CharField(choices=[('always', 'Always: it begins anew, as a batch command does'), ('accelerated', 'With accelerators: what computes on them begins anew'), ('never', 'Never: it goes on from its files')], default='always', help_text='When its work is lost if it has to make room. Users may know better and say so.', max_length=12),
        ),
        migrations.RunPython(notebooks_compute_on_accelerators, migrations.RunPython.noop),
    ]
