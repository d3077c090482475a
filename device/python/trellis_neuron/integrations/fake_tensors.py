"""Fake tensors under ranks as threads: PyTorch caches what an operation returns for all threads,
with the device of the thread that came first. A rank's device is its own, so it caches nothing."""

from .. import ranks

MODULE = "torch._subclasses.fake_tensor"


def register(module) -> None:
    mode = module.FakeTensorMode
    init = mode.__init__

    def init_without_cache(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if ranks.current() is not None:
            self.cache_enabled = False

    mode.__init__ = init_without_cache
