"""The review queue, and the history of a review. Assign, comment and review are operations of the job."""

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from rest_framework import generics

from console.api.base import StrictView
from console.api.pagination import NewestFirst, NewestOperationFirst
from console.api.serializers.checkpoints import CheckpointSerializer
from console.api.serializers.operations import OperationSerializer
from console.checkpoints.models import Checkpoint
from console.checkpoints.review_queue import ReviewFilter, review_queue
from console.operations.kinds.snapshot.review import review_history
from console.operations.models import Operation


class Reviews(StrictView, generics.ListAPIView[Checkpoint]):
    """The checkpoints of all jobs that need a look and whose review is open, newest first."""

    queryset = review_queue()
    serializer_class = CheckpointSerializer
    filterset_class = ReviewFilter
    pagination_class = NewestFirst


class ReviewHistory(StrictView, generics.ListAPIView[Operation]):
    """Assignments, comments and outcomes of the review of a checkpoint, as operations, newest first."""

    queryset = Operation.objects.none()
    serializer_class = OperationSerializer
    pagination_class = NewestOperationFirst
    query = frozenset({"limit", "cursor"})

    def get_queryset(self) -> QuerySet[Operation]:
        if getattr(self, "swagger_fake_view", False):
            return Operation.objects.none()
        return review_history(get_object_or_404(Checkpoint, pk=self.kwargs["checkpoint"]))
