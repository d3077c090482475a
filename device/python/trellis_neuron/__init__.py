"""The emulated AWS Trainium device `neuron` for PyTorch: `import torch, trellis_neuron`, then
`torch.device("neuron")`."""

from . import _versions

_versions.check()


def _autoload():
    """Entry point `torch.backends`: once the package is installed, `import torch` alone brings the
    device. Importing did the work."""


import torch  # noqa: E402

from . import _library, neuron  # noqa: E402


def _register():
    holder = torch._C._get_privateuse1_backend_name()
    if holder not in ("privateuseone", neuron.NAME):
        raise ImportError(
            f"trellis_neuron: PrivateUse1 belongs to another device in this process: {holder}; "
            "a process holds one such device"
        )
    _library.load()
    torch.utils.rename_privateuse1_backend(neuron.NAME)
    torch._register_device_module(neuron.NAME, neuron)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_storage=True, for_packed_sequence=True
    )
    # Backward belongs to the thread that calls it: its operations are recorded on that thread's
    # ranks.
    torch.autograd.set_multithreading_enabled(False)


_register()

from . import distributed, integrations  # noqa: E402
from .ranks import run_ranks  # noqa: E402
from .simulation import Simulation, simulate  # noqa: E402

distributed.register()
integrations.register()

__all__ = ["Simulation", "neuron", "run_ranks", "simulate"]
