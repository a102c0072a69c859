"""Routes of the pages."""

from django.contrib.auth.views import LogoutView
from django.urls import path
from django.views.generic import RedirectView

from console.ui.views import (
    actions,
    checkpoints,
    comparison,
    jobs,
    labels,
    numbers,
    operations,
    rescale,
    restore,
    retention,
    runs,
    schedule,
    session,
    state,
    trend,
)

app_name = "ui"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="ui:jobs"), name="home"),
    path("login/", session.Login.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("theme/", session.theme, name="theme"),
    path("jobs/", jobs.job_list, name="jobs"),
    path("jobs/new/", jobs.new_job, name="new_job"),
    path("jobs/<int:pk>/", jobs.detail, name="job"),
    path("jobs/<int:pk>/versions/new/", jobs.new_version, name="new_version"),
    path("jobs/<int:pk>/start/", actions.start, name="start"),
    path("jobs/<int:pk>/savepoint/", actions.confirm, {"kind": "savepoint"}, name="savepoint"),
    path("jobs/<int:pk>/rescale/", rescale.rescale, name="rescale"),
    path("jobs/<int:pk>/stop/", actions.confirm, {"kind": "stop"}, name="stop"),
    path("jobs/<int:pk>/drain/", actions.confirm, {"kind": "drain"}, name="drain"),
    path("jobs/<int:pk>/cancel/", actions.confirm, {"kind": "cancel"}, name="cancel"),
    path("jobs/<int:pk>/restore/", restore.restore, name="restore"),
    path("jobs/<int:pk>/history.csv", numbers.numbers_csv, name="history_csv"),
    path("jobs/<int:pk>/checkpoints/", checkpoints.checkpoint_list, name="checkpoints"),
    path("jobs/<int:pk>/checkpoints/statistics/", checkpoints.checkpoint_statistics, name="checkpoint_statistics"),
    path("jobs/<int:pk>/checkpoints/compare/", comparison.compare, name="compare"),
    path("jobs/<int:pk>/checkpoints/retention/", retention.retention, name="retention"),
    path("jobs/<int:pk>/checkpoints/trend/", trend.trend, name="trend"),
    path("jobs/<int:pk>/checkpoints/schedule/", schedule.schedule, name="schedule"),
    path("runs/<int:pk>/", runs.run, name="run"),
    path("checkpoints/<int:pk>/", checkpoints.checkpoint, name="checkpoint"),
    path("checkpoints/<int:pk>/discard/", checkpoints.discard, name="discard"),
    path("checkpoints/<int:pk>/pin/", labels.pin, name="pin"),
    path("checkpoints/<int:pk>/label/", labels.label, name="label"),
    path("checkpoints/<int:pk>/state/", state.contents, name="state"),
    path("checkpoints/<int:pk>/state/ask/", state.ask, name="ask_state"),
    path("state-queries/<int:pk>/", state.query, name="state_query"),
    path("state-queries/<int:pk>/cancel/", state.cancel, name="cancel_state_query"),
    path("state-queries/<int:pk>/csv/", state.csv, name="state_query_csv"),
    path("operations/", operations.operation_list, name="operations"),
    path("operations/<uuid:pk>/", operations.operation, name="operation"),
]
