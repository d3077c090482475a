from case import family
from opinfo import DTYPES, compare_samples, dtype_named, seed_all
from torch.testing._internal import common_methods_invocations as invocations

LISTS = (
    "foreach_unary_op_db",
    "foreach_binary_op_db",
    "foreach_pointwise_op_db",
    "foreach_reduce_op_db",
    "foreach_other_op_db",
)
INFOS = {info.name: info for name in LISTS for info in getattr(invocations, name)}


@family(
    "foreach", "_foreach_* on lists, both forms, with scalars, scalar tensors and lists of them"
)
class Foreach:
    @staticmethod
    def cases():
        for name, info in INFOS.items():
            for form in ("method", "inplace"):
                if getattr(info, f"{form}_variant") is not None:
                    yield from ((f"{name}.{form}", dtype) for dtype in DTYPES)

    @staticmethod
    def run(subject, dtype):
        name, form = subject.rsplit(".", 1)
        info = INFOS[name]
        seed_all()
        samples = info.sample_inputs(
            "cpu", dtype_named(dtype), noncontiguous=False, allow_higher_dtype_scalars=True
        )
        compare_samples(info, samples, getattr(info, f"{form}_variant"), may_refuse=True)
