from case import family
from opinfo import DTYPES, OPERATORS, cases, compare_samples, samples_of


@family(
    "forward", "every operator's result equals the CPU's bit for bit, with its strides and aliasing"
)
class Forward:
    @staticmethod
    def cases():
        return cases(lambda op: True, DTYPES)

    @staticmethod
    def run(subject, dtype):
        op = OPERATORS[subject]
        compare_samples(op, samples_of(op, dtype))
