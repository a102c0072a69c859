"""The cost of checkpoints of up to a gigabyte of state, and the speed of reading state in Spark."""
