from django.db import migrations, models


def allow_code_server(apps, schema_editor):
    """Its web views are served by a service worker."""
    apps.get_model("catalog", "Template").objects.filter(upstream_auth="code-server").update(service_workers=True)


class Migration(migrations.Migration):
    dependencies = [("catalog", "0006_within")]

    operations = [
        migrations.AddField(
            model_name="template",
            name="service_workers",
            field=models.BooleanField(
                default=False,
                help_text="Whether its pages may install service workers, which outlive the page and a restart.",
            ),
        ),
        migrations.RunPython(allow_code_server, migrations.RunPython.noop),
    ]
