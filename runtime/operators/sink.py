from runtime.ports import Operator
class SinkOperator(Operator):
    def __init__(self, sink): ...
    def process(self, input, batch, out): raise NotImplementedError
