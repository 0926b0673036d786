"""From settings to drivers: models are checked against the memory, loaded, and given pages and a driver."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from inferd.protocol import InvalidRequest
from inferd_runtime.draft_models.options import DraftOptions, choices_of
from inferd_runtime.engine.drivers.build import DeviceDriver, DriverOptions, build_driver, element_size, step_bytes
from inferd_runtime.engine.drivers.parallel import LeadingDriver
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.scheduling.costs import MEASURED_ROWS, measure_cost, measure_times
from inferd_runtime.engine.scheduling.fairness import StepCost
from inferd_runtime.engine.scheduling.kept_costs import KeptCosts, known_costs
from inferd_runtime.kept_results import KeptResults
from inferd_runtime.models.devices import available_bytes, check_device
from inferd_runtime.models.fitting.fit import Placed, check_fit, divide_with_drafts
from inferd_runtime.models.fitting.sizing import default_threads
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.loading import load, size_of
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.parallel import use_threads
from inferd_runtime.models.passes.fused import FusedPass
from inferd_runtime.models.proved.store import ProofStore
from inferd_runtime.models.weights.held import row_bits_of
from inferd_runtime.phases import Phases
from inferd_runtime.server.engine_process.draft_models import draft_engine_settings
from inferd_runtime.server.engine_process.followers import Followers
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.speculation.times import StepTimes

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ServingDriver: TypeAlias = DeviceDriver | LeadingDriver


@dataclass(frozen=True)
class ModelPlan:
    """What one engine process loads: the models that it serves, then draft models for its own threads.

    ``owners``: for each of ``drafts``, the place of its target among ``served``.
    """

    served: tuple[ModelOptions, ...]
    drafts: tuple[DraftOptions, ...]
    owners: tuple[int, ...]
    all: tuple[ModelOptions, ...]

    @classmethod
    def of(cls, settings: EngineSettings) -> ModelPlan:
        """Read the settings. Raises NotFound or InvalidRequest for draft models and devices that cannot be."""
        served = settings.models
        names = [model.name for model in served]
        choices_of(settings.draft, names)
        drafts = tuple(draft for draft in settings.draft if draft.beside)
        owners = tuple(names.index(draft.target_among(names)) for draft in drafts)
        beside = tuple(draft.model.over(settings.defaults) for draft in drafts)
        return cls(served, drafts, owners, tuple(model.checked() for model in (*served, *beside)))


@dataclass(frozen=True)
class DrivenModel:
    """A loaded model with its driver. ``settings`` are the engine's, for a draft model those that differ for it."""

    settings: EngineSettings
    options: ModelOptions
    loaded: LoadedModel
    driver: ServingDriver

    @property
    def trees(self) -> bool:
        """True if drafts may be trees.

        On the CPU a chain of drafts changes no bit of a logit, a tree the last ones of float32. Where results are rounded to
        fewer bits, that could change a token.
        """
        like = next(self.loaded.module.parameters())
        exact = like.dtype == torch.float32 and self.options.weights in ("", "half") and not _row_bits(self.driver)
        return exact or like.device.type != "cpu"


def load_drivers(settings: EngineSettings, plan: ModelPlan, followers: Followers, phases: Phases) -> list[DrivenModel]:
    """Load all models of a plan and build their drivers, in its order.

    Raises InferdError; LimitExceeded before any weight is read when the models do not fit together.
    """
    threads = settings.threads or 0
    use_threads(threads)
    proofs = None if settings.plain else ProofStore()
    placed = _place(settings, plan, followers, proofs)
    first, *rest = plan.all
    loaded = [followers.load(first, threads, proofs)]
    loaded += [
        load(model.name, device=model.device, dtype=model.dtype, proofs=proofs, weights=model.weights) for model in rest
    ]
    phases.end("models")
    loaded = [_with_weights(*one) for one in zip(plan.all, loaded, strict=True)]
    use_threads(threads, max((model.module for model in loaded), key=default_threads), followers.ranks)
    pages = _divide_pages(settings, plan, placed, loaded, followers)
    each = [settings] * len(plan.served) + [draft_engine_settings(settings)] * len(plan.drafts)
    beside = [False] * len(plan.served) + [True] * len(plan.drafts)
    drivers = [_build_driver(*one, followers) for one in zip(each, plan.all, loaded, pages, beside, strict=True)]
    phases.end("weights, cache")
    return [_driven(*one) for one in zip(each, plan.all, loaded, drivers, strict=True)]


def _with_weights(model: ModelOptions, loaded: LoadedModel) -> LoadedModel:
    """Return the model under a fingerprint of its own where its weights are held in less: cached keys and values differ."""
    return replace(loaded, fingerprint=f"{loaded.fingerprint}-{model.weights}") if model.weights else loaded


def _driven(settings: EngineSettings, model: ModelOptions, loaded: LoadedModel, driver: ServingDriver) -> DrivenModel:
    """Return a model with its driver, under a fingerprint of its own where rows are rounded more than weights say."""
    bits = _row_bits(driver)
    if bits and (bits < 16 or not model.weights):
        loaded = replace(loaded, fingerprint=f"{loaded.fingerprint}-rows{bits}")
    return DrivenModel(settings, model, loaded, driver)


def _row_bits(driver: ServingDriver) -> int:
    run = driver.run if isinstance(driver, TorchDriver) else None
    return row_bits_of(run) if isinstance(run, FusedPass) else 0


def step_costs(model: DrivenModel) -> tuple[StepCost, StepTimes]:
    """Return what steps of a model cost: measured now, on the CPU once for all starts. The driver's pages must be unused."""
    driver = model.driver
    if not isinstance(driver, TorchDriver):
        return measure_cost(driver), measure_times(driver)
    threads = torch.get_num_threads()
    depends = (model.loaded.fingerprint, driver_options(model.settings, driver.pages), threads)
    # By one thread's own time the machine's other work does not count, which would make wide steps look dearer than they are.
    clock = time.thread_time if threads == 1 else None
    return known_costs(driver, depends, KeptResults.named("costs", KeptCosts), clock)


def driver_options(settings: EngineSettings, pages: int, weights: str = "", device: str = "cpu") -> DriverOptions:
    """Return what the driver is built with. Its rows are enough for the steps by which the cost model is measured, too."""
    return DriverOptions(
        pages,
        settings.page_size,
        most_rows=max(MEASURED_ROWS, settings.budget_on(device) * max(1, settings.fixed_rows)),
        plain=settings.plain,
        fixed_rows=settings.fixed_rows,
        kv_dtype="" if settings.kv_dtype == "model" else settings.kv_dtype,
        graphs=settings.graphs == "on",
        products=settings.products,
        weights=weights,
    )


def _place(settings: EngineSettings, plan: ModelPlan, followers: Followers, proofs: ProofStore | None) -> list[Placed]:
    """Return what each model takes, and where, as far as that is known before it is loaded.

    Raises InvalidRequest for settings that contradict each other, LimitExceeded for models that do not fit together.
    """
    if settings.products == "kernel" and all(model.device == "cpu" for model in plan.served):
        raise InvalidRequest("--products kernel is for models on a GPU")
    followers.check(settings)
    placed = [Placed(size_of(model, proofs), check_device(model.device), model.pages) for model in plan.all]
    if settings.kv_dtype == "fp8":
        placed = [model.with_kv(model.size.kv_token_bytes // BYTES[model.size.dtype]) for model in placed]
    placed[0] = followers.placed(placed[0])
    check_fit(placed, available_bytes, settings.page_size)
    return placed


def _divide_pages(
    settings: EngineSettings,
    plan: ModelPlan,
    placed: Sequence[Placed],
    loaded: Sequence[LoadedModel],
    followers: Followers,
) -> list[int]:
    """Return the pages of each model, now that it is known what one token takes and what the weights left free."""
    options = driver_options(settings, 1)
    token_bytes = [model.probe.kv.bytes_per_token(element_size(model, options)) for model in loaded]
    seen = [model.with_kv(size) for model, size in zip(placed, token_bytes, strict=True)]
    seen[0] = followers.loaded(seen[0])
    free = _free_bytes(settings, loaded, followers)
    return divide_with_drafts(seen, plan.owners, free, settings.page_size)


def _free_bytes(settings: EngineSettings, loaded: Sequence[LoadedModel], followers: Followers) -> Callable[[str], int]:
    """Return the function from a device to the bytes for KV pages: what is available, less what steps will take beside."""
    taken: Counter[str] = Counter()
    for place, model in enumerate(loaded):
        device = next(model.module.parameters()).device
        measure = step_bytes if place else followers.step_bytes  # of all models the first one may be divided
        taken[str(device)] += measure(model, driver_options(settings, 1, device=str(device)))
    return lambda device: max(0, followers.available(device) - taken[device])


def _build_driver(
    settings: EngineSettings, model: ModelOptions, loaded: LoadedModel, pages: int, beside: bool, followers: Followers
) -> ServingDriver:
    options = driver_options(settings, pages, model.weights, model.device)
    options = replace(options, beside=beside, row_bits=model.row_bits)
    return followers.lead(loaded, options) if settings.tensor_parallel > 1 else build_driver(loaded, options)
