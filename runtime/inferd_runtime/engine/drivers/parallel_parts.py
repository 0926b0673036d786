"""How the ranks of a divided model start together, once each has loaded its part.

Rank 0 asks all of them what their largest steps take, then to build their drivers: with kernels and recorded steps on a GPU where
the part's pass has them. Meanwhile all ranks do the same, and their steps' sums go over the group as later in serving.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.drivers.accelerator import CudaAccelerator
from inferd_runtime.engine.drivers.build import (
    DeviceDriver,
    DriverOptions,
    build_driver,
    reference_step_bytes,
    step_bytes,
)
from inferd_runtime.engine.drivers.cuda_driver import CudaDriver
from inferd_runtime.engine.drivers.parallel import EndProcess, LeadingDriver, follow, take_reply, try_send
from inferd_runtime.engine.drivers.parallel_commands import Build, CommandDone, Loaded, Measure, decode_command, encode
from inferd_runtime.engine.drivers.parallel_steps import LeadingSampler
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.parallel import TIMEOUT_S, WatchedPass, own_part
from inferd_runtime.models.passes.device import device_pass
from inferd_runtime.models.passes.plain import PlainPass

logger = logging.getLogger(__name__)
FastBuilder = Callable[[LoadedModel, DriverOptions], DeviceDriver]


def lead(
    loaded: LoadedModel, options: DriverOptions, followers: Sequence[Connection], lost: EndProcess,
    build: FastBuilder | None = None,
) -> LeadingDriver:  # fmt: skip
    """Return the driver of a model that is loaded in every rank, once all have built theirs. ``build``: as :func:`build_part`."""
    for follower in followers:
        follower.send_bytes(encode(Build(options)))
    driver, watched = build_part(loaded, options, build)
    leading = (
        LeadingSampler(driver, watched, followers, lost)
        if isinstance(driver, CudaDriver)
        else LeadingDriver(driver, watched, followers, lost)
    )
    leading.answers()
    return leading


def measure_steps(loaded: LoadedModel, options: DriverOptions, followers: Sequence[Connection]) -> int:
    """Return the device memory of the largest steps beside weights and cache, in the rank that needs the most."""
    for follower in followers:
        follower.send_bytes(encode(Measure(options)))
    own = part_step_bytes(loaded, options)
    others = [take_reply(follower, CommandDone, rank, TIMEOUT_S) for rank, follower in enumerate(followers, 1)]
    return max([own, *(answer.size for answer in others)])


def follow_with(loaded: LoadedModel, channel: Connection, free: int, build: FastBuilder | None = None) -> None:
    """Report that this rank's part is loaded, start with rank 0, and follow.

    ``free``: bytes that are left for pages. ``build``: as :func:`build_part`. Raises as :func:`follow`, and what a start raises.
    """
    channel.send_bytes(encode(Loaded(free)))
    while True:
        try:
            command = decode_command(channel.recv_bytes())
        except (EOFError, ConnectionError):
            return
        if isinstance(command, Build):
            break
        if not isinstance(command, Measure):
            return
        channel.send_bytes(encode(CommandDone(size=part_step_bytes(loaded, command.options))))
    driver, watched = build_part(loaded, command.options, build)
    if try_send(channel, encode(CommandDone())):
        follow(driver, watched, channel)


def build_part(
    loaded: LoadedModel, options: DriverOptions, build: FastBuilder | None = None
) -> tuple[DeviceDriver, WatchedPass]:
    """Return the driver of one rank's part of a model, and the pass that it watches over where steps are not staged.

    All ranks call this together. ``build``: what makes the driver with kernels; None: as the device has them.
    """
    run = WatchedPass(loaded.part or PlainPass(loaded.module))
    build = build or (build_driver if has_kernels(loaded) else None)
    driver = _reference(loaded, options, run) if build is None else build(loaded, options)
    if isinstance(driver, TorchDriver):
        driver.compute_by(run)
    return driver, run


def part_step_bytes(loaded: LoadedModel, options: DriverOptions) -> int:
    """Return the device memory of this rank's steps beside weights and cache; 0 on the CPU. All ranks call this together."""
    device = own_part(next(loaded.module.parameters())).device
    if device.type != "cuda":
        return 0
    if has_kernels(loaded):
        return step_bytes(loaded, options)
    return reference_step_bytes(loaded, loaded.part, options, CudaAccelerator(device))


def has_kernels(loaded: LoadedModel) -> bool:
    """True if the part is on a GPU, and its pass can run over kernels."""
    if own_part(next(loaded.module.parameters())).device.type != "cuda":
        return False
    try:
        if loaded.part is not None:
            device_pass(loaded.part)
            return True
        reason = "transformers' modules over several ranks are not recorded"
    except InvalidRequest as error:
        reason = error.message
    logger.info("model %s is served without kernels: %s", loaded.name, reason)
    return False


def _reference(loaded: LoadedModel, options: DriverOptions, run: WatchedPass) -> TorchDriver:
    return TorchDriver(
        run, next(loaded.module.parameters()), loaded.probe.kv, vocab_size=loaded.vocab_size,
        max_context=loaded.max_context, pages=options.pages, page_size=options.page_size,
    )  # fmt: skip
