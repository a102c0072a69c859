"""All tables by their names, which templates use."""

from typing import Final

from console.ui.tables import jobs
from console.ui.tables.table import Table

TABLES: Final = {table.name: table for module in (jobs,) for table in vars(module).values() if isinstance(table, Table)}
