"""How a checkpoint is taken: the coordinator and the machines that it consists of."""
