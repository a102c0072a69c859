"""Error codes of operations that end without a result. Operations and health read them."""

from typing import Final

WITHDRAWN: Final = "withdrawn"  #: by a user
DRILL_CANCELED: Final = "drill-canceled"
DRILL_WITHOUT_SLOTS: Final = "drill-no-slots"
#: Codes of drills that read no state to its end: neither a finding nor a proof.
INCONCLUSIVE: Final = (WITHDRAWN, DRILL_CANCELED, DRILL_WITHOUT_SLOTS)
