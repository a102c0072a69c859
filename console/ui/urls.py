"""Routes of the pages."""

from django.contrib.auth.views import LogoutView
from django.urls import path
from django.views.generic import RedirectView

from console.operations.kinds.job.delegated import DelegatedOperation
from console.operations.registry import types_of
from console.ui.views import (
    actions,
    bulk,
    cluster,
    definitions,
    jobs,
    names,
    numbers,
    operations,
    rescale,
    restore,
    runs,
    saved_views,
    session,
    tables,
    tokens,
)
from console.ui.views.checkpoints import (
    checkpoints,
    clones,
    comparison,
    evidence,
    retention,
    reviews,
    schedule,
    state,
    trend,
)

app_name = "ui"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="ui:jobs"), name="home"),
    path("login/", session.Login.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("tokens/", tokens.tokens, name="tokens"),
    path("tokens/<int:pk>/revoke/", tokens.revoke_token, name="revoke_token"),
    path("theme/", session.theme, name="theme"),
    path("zone/", session.zone, name="zone"),
    path("jobs/", jobs.job_list, name="jobs"),
    path("jobs/new/", jobs.new_job, name="new_job"),
    path("jobs/bulk/", bulk.bulk, name="bulk"),
    path("jobs/bulk/<uuid:pk>/", bulk.bulk_result, name="bulk_result"),
    path("jobs/names/", names.job_names, name="job_names"),
    path("jobs/<int:pk>/", jobs.detail, name="job"),
    path("jobs/<int:pk>/edit/", definitions.edit_job, name="edit_job"),
    path("jobs/<int:pk>/archive/", definitions.archive, name="archive"),
    path("jobs/<int:pk>/versions/", definitions.versions, name="versions"),
    path("versions/<int:pk>/", definitions.change_version, name="change_version"),
    path("jobs/<int:pk>/versions/yaml/", definitions.version_as_yaml, name="version_as_yaml"),
    path("jobs/<int:pk>/versions/new/", jobs.new_version, name="new_version"),
    path("jobs/<int:pk>/start/", actions.start, name="start"),
    *(
        path(f"jobs/<int:pk>/{each.kind}/", actions.confirm, {"kind": each.kind.value}, name=each.kind.value)
        for each in types_of(DelegatedOperation)
    ),
    path("jobs/<int:pk>/rescale/", rescale.rescale, name="rescale"),
    path("jobs/<int:pk>/restore/", restore.restore, name="restore"),
    path("jobs/views/", saved_views.save_view, name="save_view"),
    path("jobs/views/<int:pk>/delete/", saved_views.delete_view, name="delete_view"),
    path("jobs.csv", tables.jobs_csv, name="jobs_csv"),
    path("jobs/<int:pk>/runs.csv", tables.runs_csv, name="runs_csv"),
    path("jobs/<int:pk>/checkpoints.csv", tables.checkpoints_csv, name="checkpoints_csv"),
    path("jobs/<int:pk>/history.csv", numbers.numbers_csv, name="history_csv"),
    path("jobs/<int:pk>/plots/<slug:key>.svg", numbers.plot_svg, name="plot_svg"),
    path("jobs/<int:pk>/checkpoints/", checkpoints.checkpoint_list, name="checkpoints"),
    path("jobs/<int:pk>/checkpoints/statistics/", checkpoints.checkpoint_statistics, name="checkpoint_statistics"),
    path("jobs/<int:pk>/checkpoints/compare/", comparison.compare, name="compare"),
    path("jobs/<int:pk>/checkpoints/retention/", retention.retention, name="retention"),
    path("jobs/<int:pk>/checkpoints/orphans/", retention.orphans, name="orphans"),
    path("jobs/<int:pk>/checkpoints/trend/", trend.trend, name="trend"),
    path("jobs/<int:pk>/checkpoints/trend.csv", trend.trend_csv, name="trend_csv"),
    path("jobs/<int:pk>/checkpoints/schedule/", schedule.schedule, name="schedule"),
    path("runs/<int:pk>/", runs.run, name="run"),
    path("runs/<int:pk>/subtasks/", runs.subtasks, name="subtasks"),
    path("runs/<int:pk>/log/", runs.log, name="run_log"),
    path("checkpoints/<int:pk>/", checkpoints.checkpoint, name="checkpoint"),
    path("checkpoints/<int:pk>/discard/", checkpoints.discard, name="discard"),
    path("checkpoints/<int:pk>/clone/", clones.clone, name="clone"),
    path("checkpoints/<int:pk>/pin/", actions.on_snapshot, {"kinds": ("pin", "unpin")}, name="pin"),
    path("checkpoints/<int:pk>/label/", actions.on_snapshot, {"kinds": ("label",)}, name="label"),
    path("checkpoints/<int:pk>/copy/", actions.on_snapshot, {"kinds": ("copy",)}, name="copy"),
    path("checkpoints/<int:pk>/state/", state.contents, name="state"),
    path("checkpoints/<int:pk>/state/ask/", state.ask, name="ask_state"),
    path("state-queries/<int:pk>/", state.query, name="state_query"),
    path("state-queries/<int:pk>/cancel/", state.cancel, name="cancel_state_query"),
    path("state-queries/<int:pk>/csv/", state.csv, name="state_query_csv"),
    path("checkpoints/<int:pk>/evidence/", evidence.evidence, name="evidence"),
    path(
        "checkpoints/<int:pk>/review/",
        actions.on_snapshot,
        {"kinds": ("review", "assign", "comment")},
        name="review",
    ),
    path("reviews/", reviews.desk, name="reviews"),
    path("cluster/", cluster.cluster, name="cluster"),
    path("operations/", operations.operation_list, name="operations"),
    path("operations/<uuid:pk>/", operations.operation, name="operation"),
    path("operations/<uuid:pk>/withdraw/", operations.withdraw, name="withdraw"),
]
