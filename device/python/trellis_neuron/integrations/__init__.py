"""What other libraries ask for before they use the device. `TRELLIS_INTEGRATIONS=0` leaves them
alone."""

import os

from ..nki import names as kernel_names
from . import (
    accelerate,
    compilation,
    data_parallel,
    distributed_tensors,
    fake_tensors,
    higher_order,
    lightning,
    module_names,
    varlen,
)
from .import_hooks import after_import


def register() -> None:
    if os.environ.get("TRELLIS_INTEGRATIONS", "1") == "0":
        return
    module_names.register()
    kernel_names.register()
    higher_order.register()
    for name in lightning.MODULES:
        after_import(name, lightning.register)
    after_import(accelerate.MEMORY, accelerate.register_memory)
    after_import(accelerate.STATE, accelerate.register_state)
    after_import(fake_tensors.MODULE, fake_tensors.register)
    after_import(fake_tensors.OPERATORS, fake_tensors.register_operators)
    after_import(compilation.BACKENDS, compilation.register_backend)
    after_import(compilation.INDUCTOR, compilation.register_default)
    after_import(higher_order.FLEX_OPERATOR, higher_order.register_flex_operator)
    after_import(higher_order.FLEX, higher_order.register_flex)
    after_import(higher_order.RANDOM, higher_order.register_random)
    after_import(varlen.MODULE, varlen.register)
    after_import(data_parallel.MODULE, data_parallel.register)
    after_import(distributed_tensors.RANDOM, distributed_tensors.register_random)
    after_import(distributed_tensors.DISPATCH, distributed_tensors.register_dispatch)
