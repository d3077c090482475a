"""Moves arguments to the device as they are: strides, offsets, aliasing, conjugate and negative
bits, identity."""

import dataclasses

import torch
from neuron_device import DEVICE


class Transfer:
    """Maps values made for the CPU to `device`. One Transfer per call: tensors that share a storage
    there share one here."""

    def __init__(self, device=DEVICE):
        self.device = device
        self._storages = {}
        self._tensors = {}

    def __call__(self, value):
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (torch.device, str)):
            return self.device if str(value) == "cpu" else value
        if isinstance(value, torch.Generator):
            generator = torch.Generator(self.device)
            generator.set_state(value.get_state())
            return generator
        if isinstance(value, torch.nn.utils.rnn.PackedSequence):
            return value.to(self.device)
        if (
            isinstance(value, tuple) and type(value) is not tuple
        ):  # named, or one of torch.return_types
            items = list(map(self, value))
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if type(value) in (list, tuple, set):
            return type(value)(map(self, value))
        if isinstance(value, dict):
            return type(value)((key, self(item)) for key, item in value.items())
        if isinstance(value, slice):
            return slice(self(value.start), self(value.stop), self(value.step))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.replace(
                value,
                **{
                    f.name: self(getattr(value, f.name))
                    for f in dataclasses.fields(value)
                    if f.init
                },
            )
        return value

    def keep(self, tensor):
        """From now on `tensor` stays where it is."""
        self.replace(tensor, tensor)

    def replace(self, tensor, by):
        """From now on `by` represents `tensor`."""
        self._tensors[id(tensor)] = (by, tensor)

    def _tensor(self, tensor):
        if tensor.device.type != "cpu" and id(tensor) not in self._tensors:
            return tensor
        if id(tensor) not in self._tensors:
            moved = self._move(tensor.detach())
            if isinstance(tensor, torch.nn.Parameter):
                moved = torch.nn.Parameter(moved, tensor.requires_grad)
            elif tensor.requires_grad:
                moved.requires_grad_()
            self._tensors[id(tensor)] = (
                moved,
                tensor,
            )  # holds the source, so that its id stays taken
        return self._tensors[id(tensor)][0]

    def _move(self, tensor):
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            return tensor.to(self.device)
        plain = torch._neg_view(tensor) if tensor.is_neg() else tensor
        plain = plain.conj() if plain.is_conj() else plain
        moved = torch.empty(0, dtype=tensor.dtype, device=self.device)
        moved.set_(
            self._storage(plain.untyped_storage()),
            plain.storage_offset(),
            plain.shape,
            plain.stride(),
        )
        moved = moved.conj() if tensor.is_conj() else moved
        return torch._neg_view(moved) if tensor.is_neg() else moved

    def _storage(self, storage):
        if storage._cdata not in self._storages:
            data = torch.empty(0, dtype=torch.uint8).set_(storage).to(self.device, copy=True)
            self._storages[storage._cdata] = (data.untyped_storage(), storage)
        return self._storages[storage._cdata][0]


def tensors_in(value):
    """Every tensor inside lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
