"""Effects of operations before they are requested, acts on several jobs, schedules, reviews and maintenance."""
