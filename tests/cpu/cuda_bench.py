"""The fast driver on the CPU, beside the reference driver, on tiny models: the kernels' torch twins, and recorded steps."""

from __future__ import annotations

import torch
from families import VOCAB, make

from inferd_runtime.engine.drivers.cuda_driver import CudaDriver, CudaOptions
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.kernels.cache import CacheBlock
from inferd_runtime.kernels.suite import KernelSuite
from inferd_runtime.models.kernel_pass import KernelPass
from inferd_runtime.models.lora_bank import LoraBank
from inferd_runtime.models.passes import PlainPass
from inferd_runtime.models.probe import attach
from inferd_runtime.testing.recorded_host import RecordedHost

PAGE_SIZE = 4
PAGES = 128
MOST_ROWS = 96


class CudaBench:
    """One model behind both drivers, each with a cache of its own. ``host`` counts what is recorded and replayed."""

    def __init__(
        self,
        family: str,
        kernels: KernelSuite,
        *,
        record: bool = True,
        vocab_size: int = VOCAB,
        most_rows: int = MOST_ROWS,
    ) -> None:
        model = make(family, vocab_size=vocab_size)
        probed = attach(model, family)
        run, like = PlainPass(model), next(model.parameters())
        sizes = {"vocab_size": vocab_size, "max_context": 256, "pages": PAGES, "page_size": PAGE_SIZE}
        block = CacheBlock(probed.kv.keys, probed.kv.values, torch.float32, PAGES, PAGE_SIZE, "cpu")
        caches = (block.keys, block.values)
        adapters = LoraBank(run, model, probed.kv)
        self.host = RecordedHost()
        self.reference = TorchDriver(run, like, probed.kv, adapters=adapters, **sizes)
        self.driver = CudaDriver(
            KernelPass(model, kernels.write_kv, kernels.paged_attention),
            TorchDriver(run, like, probed.kv, adapters=adapters, caches=caches, **sizes),
            block,
            kernels,
            self.host,
            CudaOptions(most_rows, splits=lambda tiles: 2, group=probed_group(model), record=record),
        )


def probed_group(model: torch.nn.Module) -> int:
    """Query heads per key head."""
    config = model.config
    return config.num_attention_heads // getattr(config, "num_key_value_heads", config.num_attention_heads)
