"""The command `weirctl`: operates jobs over the console's REST API. It imports neither the engine nor Django."""
