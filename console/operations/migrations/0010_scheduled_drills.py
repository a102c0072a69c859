"""Schedules of restore drills beside those of savepoints. A reversal deletes the schedules of drills."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0012_review_policy"),
        ("operations", "0009_reviews"),
    ]

    operations = [
        migrations.RemoveConstraint(model_name="savepointschedule", name="weir_savepoint_schedule_rule"),
        migrations.RenameModel(old_name="SavepointSchedule", new_name="Schedule"),
        migrations.AlterModelTable(name="schedule", table="weir_schedule"),
        migrations.AddField(
            model_name="schedule",
            name="operation",
            field=models.TextField(choices=[("savepoint", "Savepoint"), ("drill", "Drill")], default="savepoint"),
            preserve_default=False,
        ),
        migrations.AlterField(
            model_name="schedule",
            name="job",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="schedules",
                to="jobs.job",
            ),
        ),
        migrations.AlterField(
            model_name="schedule", name="name", field=models.TextField(blank=True, db_default="", default="")
        ),
        migrations.AlterField(model_name="schedule", name="keep", field=models.SmallIntegerField(null=True)),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.UniqueConstraint(fields=("job", "operation"), name="weir_schedule_operation"),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=models.Q(("every_hours__isnull", True), ("daily_at__isnull", True), _connector="XOR"),
                name="weir_schedule_rule",
            ),
        ),
        # Runs first when the migration is reversed: the earlier table has savepoints only, one schedule a job.
        migrations.RunSQL("", "DELETE FROM weir_schedule WHERE operation = 'drill'"),
    ]
