"""A restore: the mapping of operators as a report, and the assignment of state to subtasks."""
