"""Functions of job authors, by row and by batch, with their keyed state and timers."""
