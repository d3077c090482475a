"""What other libraries ask for before they use the device. `TRELLIS_INTEGRATIONS=0` leaves them
alone."""

import os

from . import import_hooks, lightning, module_names


def register() -> None:
    if os.environ.get("TRELLIS_INTEGRATIONS", "1") == "0":
        return
    module_names.register()
    for name in lightning.MODULES:
        import_hooks.after_import(name, lightning.register)
