"""All tables by their names, which templates use."""

from typing import Final

from console.ui.tables import checkpoints, cluster, incidents, job, jobs, operations, restores, runs, storage
from console.ui.tables.table import Table

_MODULES: Final = (checkpoints, cluster, incidents, job, jobs, operations, restores, runs, storage)
TABLES: Final = {
    table.name: table for module in _MODULES for table in vars(module).values() if isinstance(table, Table)
}
