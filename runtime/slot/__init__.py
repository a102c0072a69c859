"""A slot: the loop that runs subtasks, and the tuning and limits of its process."""
