"""Lightning: Trainer(accelerator="neuron"). Lightning finds accelerators in its own registry and
gives strategies of one device to CUDA and MPS only, so both are extended when it is imported."""

import importlib

import torch

from .. import neuron

MODULES = ("lightning.pytorch.accelerators", "pytorch_lightning.accelerators")
_CONNECTOR = "trainer.connectors.accelerator_connector"


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
    """module: a `….accelerators` of Lightning that was imported."""
    root = module.__name__.removesuffix(".accelerators")
    kind = _accelerator(module.Accelerator)
    module.AcceleratorRegistry.register(neuron.NAME, kind, description=kind.__doc__)
    from .import_hooks import after_import

    after_import(f"{root}.{_CONNECTOR}", lambda connector: _extend(connector, kind, root))


def _extend(connector, kind: type, root: str) -> None:
    choose = connector._AcceleratorConnector._choose_strategy

    def choose_strategy(self):
        is_ours = self._accelerator_flag == neuron.NAME or isinstance(self._accelerator_flag, kind)
        if is_ours and self._num_nodes_flag == 1 and len(self._parallel_devices) == 1:
            strategies = importlib.import_module(f"{root}.strategies")
            return strategies.SingleDeviceStrategy(device=self._parallel_devices[0])
        return choose(self)

    connector._AcceleratorConnector._choose_strategy = choose_strategy
