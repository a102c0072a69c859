"""A request for a clone, by a process that dies between the copy of the files and the insertion of the rows.

Arguments: the id of the user and that of the checkpoint.
"""

import os
import sys
from unittest.mock import patch

import django

django.setup()

from console.accounts.models import User  # noqa: E402  # after the setup
from console.checkpoints.models import Checkpoint  # noqa: E402
from console.operations.kinds.snapshot import clone  # noqa: E402
from console.operations.services import OperationRequestContext, request  # noqa: E402

user, snapshot = User.objects.get(pk=sys.argv[1]), Checkpoint.objects.select_related("job").get(pk=sys.argv[2])
with patch.object(clone, "create_clone", lambda *_: os._exit(9)):
    request(OperationRequestContext(user=user), snapshot.job, "clone", {"checkpoint": snapshot.pk})
