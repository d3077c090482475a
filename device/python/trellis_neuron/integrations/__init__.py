"""What other libraries ask for before they use the device. `TRELLIS_INTEGRATIONS=0` leaves them
alone."""

import os

from . import compilation, fake_tensors, lightning, module_names
from .import_hooks import after_import


def register() -> None:
    if os.environ.get("TRELLIS_INTEGRATIONS", "1") == "0":
        return
    module_names.register()
    for name in lightning.MODULES:
        after_import(name, lightning.register)
    after_import(fake_tensors.MODULE, fake_tensors.register)
    after_import(compilation.BACKENDS, compilation.register_backend)
    after_import(compilation.INDUCTOR, compilation.register_default)
