from case import Skip, family
from compare import expect
from opinfo import OPERATORS, agree, arguments_of, on_both, seed_all, widest


@family("errors", "PyTorch's error inputs raise the CPU's exception with the CPU's text")
class Errors:
    @staticmethod
    def cases():
        for name, op in OPERATORS.items():
            if op.error_inputs_func is not None:
                for dtype in widest(op):
                    yield name, dtype

    @staticmethod
    def run(subject, dtype):
        op, count = OPERATORS[subject], 0
        seed_all()
        for i, error_input in enumerate(op.error_inputs("cpu")):
            count += 1
            args, kwargs = arguments_of(error_input.sample_input)
            neuron, cpu = on_both(op.op, args, kwargs, op, place=False)
            expect(
                cpu.error is not None or neuron.error is None,
                f"error input {i}",
                "error",
                neuron.error,
                None,
            )
            agree(neuron, cpu, f"error input {i}", message=True)
        if count == 0:
            raise Skip("no error input for this device")
