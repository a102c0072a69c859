"""The command `weir`. The commands of operators know the console's REST API only."""
