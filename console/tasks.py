"""Celery tasks; each calls a service. A repeated or late message has no effect.

Their names are also in `console.wakeups`, and in the routes and the schedule of the settings.
"""

from celery import shared_task

from console import wakeups
from console.alerts import outbox, watching
from console.checkpoints import state_stage
from console.health import passes
from console.housekeeping import advance, lineage_folders, old_rows, packages, reconciler, scheduled_operations
from console.jobs import compilation, pipelines
from console.metrics import housekeeping
from console.runs import run_supervisor, stage_supervisor

shared_task(name=wakeups.SUPERVISE_TASK)(run_supervisor.supervise)
shared_task(name=wakeups.STAGE_TASK)(stage_supervisor.supervise)
shared_task(name=wakeups.COMPILE_TASK)(compilation.compile_version)
shared_task(name=wakeups.STATE_QUERY_TASK)(state_stage.answer)
shared_task(name=wakeups.PACKAGE_TASK)(pipelines.describe_package)
shared_task(name=wakeups.PIPELINES_TASK)(pipelines.sync)
shared_task(name="console.tasks.store_verdicts")(passes.record_passes("verdicts", watching.watch_jobs))
shared_task(name="console.tasks.deliver_alerts")(outbox.deliver_alerts)
shared_task(name="console.tasks.maintain")(passes.record_passes(passes.STAGES, housekeeping.maintain))
shared_task(name="console.tasks.reconcile")(passes.record_passes(passes.RECONCILER, reconciler.reconcile))
shared_task(name="console.tasks.run_schedules")(scheduled_operations.run_schedules)
shared_task(name="console.tasks.advance_operations")(passes.record_passes(passes.STAGES, advance.advance_operations))
shared_task(name="console.tasks.remove_lineage_folders")(lineage_folders.remove_unused_folders)
shared_task(name="console.tasks.remove_old_rows")(old_rows.remove_old_rows)
shared_task(name="console.tasks.remove_unused_packages")(packages.remove_unused_packages)
