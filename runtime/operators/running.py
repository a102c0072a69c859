from runtime.ports import Operator
class RunningAggregate(Operator):
    def __init__(self, keys, aggregates): ...
    def process(self, input, batch, out): raise NotImplementedError
