"""W11: how long a running job takes to come back after a killed slot, a killed master, and an exception."""
