"""The parts of a checkpoint: manifest, its encoding, the states it lists, and the permit to commit output."""
