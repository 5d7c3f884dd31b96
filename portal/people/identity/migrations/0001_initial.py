import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('accounts', '0001_initial'),
        ('accounts', '__first__'),
    ]

    operations = [
        migrations.CreateModel(
            name='GivenPlace',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='given_places', to=settings.AUTH_USER_MODEL)),
                ('provider', models.CharField(max_length=40)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='given_places', to='accounts.team')),
                ('role', models.CharField(choices=[('viewer', 'Viewer'), ('member', 'Member'), ('owner', 'Owner')], max_length=10)),
                ('before', models.CharField(blank=True, choices=[('viewer', 'Viewer'), ('member', 'Member'), ('owner', 'Owner')], max_length=10)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('user', 'provider', 'team'), name='given_place_unique')],
            },
        ),
        migrations.CreateModel(
            name='GivenRole',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='given_roles', to=settings.AUTH_USER_MODEL)),
                ('provider', models.CharField(max_length=40)),
                ('role', models.CharField(choices=[('administrator', 'Administrator'), ('operator', 'Operator'), ('approver', 'Approver'), ('auditor', 'Auditor')], max_length=20)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('user', 'provider', 'role'), name='given_role_unique')],
            },
        ),
        migrations.CreateModel(
            name='IdentityLink',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='identities', to=settings.AUTH_USER_MODEL)),
                ('provider', models.CharField(max_length=40)),
                ('subject', models.CharField(blank=True, help_text='Subject at the provider, as in its tokens.', max_length=255)),
                ('expected', models.CharField(blank=True, help_text='E-mail address to link at the first sign-in; empty once linked.', max_length=150)),
                ('how', models.CharField(choices=[('created', 'Created'), ('email', 'Email'), ('username', 'Username'), ('administrator', 'Administrator')], max_length=20)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('last_sign_in_at', models.DateTimeField(blank=True, help_text='Time of the last sign-in.', null=True)),
            ],
            options={
                'ordering': ['provider', 'user__username'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('subject', ''), _negated=True), fields=('provider', 'subject'), name='identity_subject_unique'), models.UniqueConstraint(condition=models.Q(('subject', ''), models.Q(('expected', ''), _negated=True)), fields=('provider', 'expected'), name='identity_expected_unique'), models.UniqueConstraint(fields=('provider', 'user'), name='identity_user_unique'), models.CheckConstraint(condition=models.Q(models.Q(('subject', ''), _negated=True), models.Q(('expected', ''), _negated=True), _connector='OR'), name='identity_of_somebody')],
            },
        ),
    ]
