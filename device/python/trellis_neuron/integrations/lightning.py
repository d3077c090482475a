"""Lightning: Trainer and Fabric with accelerator="neuron" or "auto". Lightning finds accelerators
in its own registries, gives strategies of one device to CUDA and MPS only, and mixed precision to
CUDA and the CPU, so these are extended when it is imported."""

import importlib

import torch

from .. import neuron

# Where accelerators are → what there chooses one, and its class.
_TRAINER = ("trainer.connectors.accelerator_connector", "_AcceleratorConnector")
_FABRIC = ("connector", "_Connector")
MODULES = {
    "lightning.pytorch.accelerators": _TRAINER,
    "pytorch_lightning.accelerators": _TRAINER,
    "lightning.fabric.accelerators": _FABRIC,
    "lightning_fabric.accelerators": _FABRIC,
}


def _accelerator(base: type) -> type:
    class NeuronAccelerator(base):
        """Logical NeuronCores of the emulated machine."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != neuron.NAME:
                raise ValueError(f"expected a {neuron.NAME} device, got {device}")
            neuron.set_device(device)

        def teardown(self) -> None:
            pass

        def get_device_stats(self, device) -> dict:
            return dict(neuron.memory_stats(device))

        @staticmethod
        def parse_devices(devices) -> list[int]:
            if isinstance(devices, str):
                devices = (
                    [int(index) for index in devices.split(",")] if "," in devices else int(devices)
                )
            count = neuron.device_count()
            if isinstance(devices, int):
                devices = list(range(count if devices == -1 else devices))
            if beyond := [index for index in devices if not 0 <= index < count]:
                raise ValueError(
                    f"devices: expected indices below {count}, the logical cores of the machine, "
                    f"got {beyond}"
                )
            return list(devices)

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device(neuron.NAME, index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return neuron.is_available()

        @staticmethod
        def name() -> str:
            return neuron.NAME

    return NeuronAccelerator


def register(module) -> None:
    """module: an `….accelerators` of Lightning that was imported."""
    root = module.__name__.removesuffix(".accelerators")
    kind = _accelerator(module.Accelerator)
    registry = getattr(module, "AcceleratorRegistry", None) or module.ACCELERATOR_REGISTRY
    registry.register(neuron.NAME, kind, description=kind.__doc__)
    from .import_hooks import after_import

    connector, name = MODULES[module.__name__]
    after_import(f"{root}.{connector}", lambda there: _extend(getattr(there, name), kind, root))


def _extend(connector: type, kind: type, root: str) -> None:
    choose_accelerator = connector._choose_auto_accelerator
    choose_strategy = connector._choose_strategy
    init_precision = connector._check_and_init_precision

    def is_ours(self) -> bool:
        return self._accelerator_flag == neuron.NAME or isinstance(self._accelerator_flag, kind)

    def choose_accelerator_or_neuron() -> str:
        chosen = choose_accelerator()
        return neuron.NAME if chosen == "cpu" else chosen

    def choose_strategy_of_one(self):
        if is_ours(self) and self._num_nodes_flag == 1 and len(self._parallel_devices) == 1:
            strategies = importlib.import_module(f"{root}.strategies")
            return strategies.SingleDeviceStrategy(device=self._parallel_devices[0])
        return choose_strategy(self)

    def init_precision_of_device(self):
        precision = init_precision(self)
        if is_ours(self) and getattr(precision, "device", None) == "cuda":
            precision.device = neuron.NAME
        return precision

    connector._choose_auto_accelerator = staticmethod(choose_accelerator_or_neuron)
    connector._choose_strategy = choose_strategy_of_one
    connector._check_and_init_precision = init_precision_of_device
