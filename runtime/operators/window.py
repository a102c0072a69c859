from runtime.ports import Operator
class TumblingWindow(Operator):
    def __init__(self, keys, time, size_ms, aggregates): ...
    def process(self, input, batch, out): raise NotImplementedError
