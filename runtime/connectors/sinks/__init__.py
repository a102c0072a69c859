"""Sinks. The attribute `guarantee` of a sink is its delivery guarantee."""
