"""The console's settings with stand-ins for what it starts, so that its own part is tested with real processes."""

import os
import sys
from pathlib import Path

from console.settings import *  # noqa: F403

_HERE = Path(__file__).parent

WEIR_MASTER_COMMAND = [sys.executable, str(_HERE / "master.py")]
WEIR_STAGES_COMMAND = [sys.executable, str(_HERE / "stage.py")]
WEIR_SUSPEND_TIMEOUT_S = 2
WEIR_MASTER_SILENCE_S = int(os.environ.get("WEIR_TEST_SILENCE_S", "6"))
