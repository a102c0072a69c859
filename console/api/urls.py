"""The routes of API version 1. Unknown routes answer with a problem document."""

from django.urls import path, re_path
from drf_spectacular.views import SpectacularAPIView

from console.api import (
    activity,
    comparison,
    definitions,
    evidence,
    mapping,
    metrics,
    openapi,
    problems,
    retention,
    reviews,
    schedule,
    state,
    statistics,
    trend,
)

app_name = "api"
urlpatterns = [
    path("auth/token/", definitions.Login.as_view(), name="login"),
    path("pipelines/", definitions.Pipelines.as_view(), name="pipelines"),
    path("jobs/", definitions.Jobs.as_view(), name="jobs"),
    path("jobs/<int:pk>/", definitions.JobDetail.as_view(), name="job"),
    path("jobs/<int:job>/versions/", definitions.Versions.as_view(), name="versions"),
    path("jobs/<int:job>/versions/difference/", definitions.VersionDifferences.as_view(), name="version-differences"),
    path("jobs/<int:job>/runs/", activity.Runs.as_view(), name="runs"),
    path("jobs/<int:job>/checkpoints/", activity.Checkpoints.as_view(), name="checkpoints"),
    path("jobs/<int:job>/checkpoints/statistics/", statistics.CheckpointStatistics.as_view(), name="statistics"),
    path("jobs/<int:job>/checkpoints/compare/", comparison.CheckpointComparison.as_view(), name="compare"),
    path("jobs/<int:job>/checkpoints/retention/", retention.Retention.as_view(), name="retention"),
    path("jobs/<int:job>/checkpoints/trend/", trend.CheckpointTrend.as_view(), name="trend"),
    path("jobs/<int:job>/checkpoints/schedule/", schedule.JobSchedule.as_view(), name="schedule"),
    path("jobs/<int:job>/operations/", activity.Operations.as_view(), name="operations"),
    path("versions/<int:pk>/", definitions.VersionDetail.as_view(), name="version"),
    path("runs/<int:pk>/", activity.RunDetail.as_view(), name="run"),
    path("runs/<int:run>/checkpoints/", activity.RunCheckpoints.as_view(), name="run-checkpoints"),
    path("runs/<int:run>/metrics/", metrics.RunMetrics.as_view(), name="run-metrics"),
    path("runs/<int:run>/metrics/subtasks/", metrics.RunSubtaskMetrics.as_view(), name="run-subtask-metrics"),
    path("checkpoints/<int:pk>/", activity.CheckpointDetail.as_view(), name="checkpoint"),
    path("checkpoints/<int:pk>/mapping/", mapping.CheckpointMapping.as_view(), name="checkpoint-mapping"),
    path("checkpoints/<int:pk>/state/", state.CheckpointState.as_view(), name="checkpoint-state"),
    path("checkpoints/<int:checkpoint>/state-queries/", state.StateQueries.as_view(), name="state-queries"),
    path("state-queries/<int:pk>/", state.StateQueryDetail.as_view(), name="state-query"),
    path("state-queries/<int:pk>/csv/", state.StateQueryCsv.as_view(), name="state-query-csv"),
    path("checkpoints/<int:pk>/evidence/", evidence.Evidence.as_view(), name="evidence"),
    path("checkpoints/<int:checkpoint>/review/", reviews.ReviewHistory.as_view(), name="review-history"),
    path("reviews/", reviews.Reviews.as_view(), name="reviews"),
    path("jobs/<int:job>/mapping/", mapping.SavepointMapping.as_view(), name="savepoint-mapping"),
    path("operations/<uuid:pk>/withdraw/", activity.OperationWithdrawal.as_view(), name="operation-withdrawal"),
    path("operations/<uuid:pk>/", activity.OperationDetail.as_view(), name="operation"),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("docs/", openapi.Docs.as_view(url_name="api:schema"), name="docs"),
    re_path(r"^", problems.NoSuchRoute.as_view(), name="no-such-route"),
]
