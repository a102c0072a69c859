"""W11: time to recover a running job after a killed slot, a killed master, and an exception."""
