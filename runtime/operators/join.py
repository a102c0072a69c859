from runtime.ports import Operator
class BroadcastJoin(Operator):
    def __init__(self, on, take, how='inner'): ...
    def process(self, input, batch, out): raise NotImplementedError
