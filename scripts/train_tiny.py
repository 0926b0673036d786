"""Train the embedded tiny model, its draft and their tokenizer, from text every Python has.

    python scripts/train_tiny.py --out runtime/inferd_runtime/models/tiny

The number of steps is fixed, so a run depends on the seed and on no clock. Both models see the same
batches in the same loop. A checkpoint replaces the files in `--out` every few minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tiny_data as data
import torch
from tiny_model import SHAPES, build
from tiny_tokenizer import for_transformers, train_tokenizer
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

SEQUENCE = 512
# Attention over short rows costs less, and looking back is learnt sooner over short distances.
SHORT_PART = 0.6
REPORT_EVERY = 25


@dataclass(frozen=True)
class Plan:
    """Everything that decides the result of a run."""

    seed: int = 7
    steps: int = 1000
    batch: int = 8
    warmup: int = 40
    muon_rate: float = 8e-3
    adam_rate: float = 5e-3
    weight_decay: float = 0.05

    def rate(self, step: int) -> float:
        """The part of the full learning rate at a step: up in a line, level, down in a line."""
        left = (self.steps - step) / (0.6 * self.steps)
        return min(1.0, (step + 1) / self.warmup, max(0.0, left))


def orthogonal(stack: torch.Tensor) -> torch.Tensor:
    """Each matrix of a stack with its singular values pushed to about one (Newton-Schulz)."""
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack.mT if tall else stack
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return torch.as_tensor(x.mT if tall else x)


class Muon:
    """Momentum with orthogonal updates, in float32.

    `torch.optim.Muon` rounds to bfloat16, which a processor without such instructions does sixty
    times slower than float32. The update is scaled to the size that Adam's would have.
    """

    def __init__(self, params: list[torch.nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.groups: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for param in params:
            self.groups.setdefault(param.shape, []).append(param)
        self.momenta = {s: torch.zeros(len(g), *s) for s, g in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move each matrix."""
        for shape, group in self.groups.items():
            grads = torch.stack([p.grad for p in group if p.grad is not None])
            momentum = self.momenta[shape].lerp_(grads, 0.05)
            update = orthogonal(grads.lerp(momentum, 0.95)) * (0.2 * math.sqrt(max(shape)))
            for param, change in zip(group, update, strict=True):
                param.mul_(1 - rate * self.decay).sub_(change, alpha=rate)


@dataclass
class Trainer:
    """One model, its optimisers and what its losses were."""

    name: str
    model: Qwen3ForCausalLM
    plan: Plan
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        params = list(self.model.named_parameters())
        matrices = [p for n, p in params if p.ndim == 2 and "embed" not in n]
        rest = [p for n, p in params if p.ndim != 2 or "embed" in n]
        self.muon = Muon(matrices, self.plan.weight_decay)
        self.adam = torch.optim.AdamW(rest, self.plan.adam_rate, (0.9, 0.95), weight_decay=0.0)

    def step(self, number: int, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """One update."""
        logits = self.model(input_ids=ids[:, :-1], use_cache=False).logits
        losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        flat = weights[:, 1:].flatten()
        loss = (losses * flat).sum() / flat.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.update(self.plan.rate(number))
        self.losses.append(loss.item())

    def update(self, part: float) -> None:
        """Apply the gradients at a part of the full rates."""
        self.muon.step(self.plan.muon_rate * part)
        for group in self.adam.param_groups:
            group["lr"] = self.plan.adam_rate * part
        self.adam.step()
        self.model.zero_grad(set_to_none=True)


def batches(tokens: data.Tokens, plan: Plan) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The packed text in order, each token seen once; rows are short first, then long."""
    size = plan.batch * SEQUENCE
    for step in range(plan.steps):
        length = SEQUENCE // 2 if step < SHORT_PART * plan.steps else SEQUENCE
        part = slice(step * size, (step + 1) * size)
        ids = torch.from_numpy(tokens.ids[part]).long()
        yield ids.view(-1, length), torch.from_numpy(tokens.weights[part]).view(-1, length)


def publish(source: Path, target: Path) -> None:
    """Replace files one at a time, so that no reader ever sees half a file."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        os.replace(path, target / path.name)


def save(trainer: Trainer, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write one model and the tokenizer in transformers format, in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".saving-", dir=out))
    copied = build(SHAPES[trainer.name], tokenizer)
    copied.load_state_dict(trainer.model.state_dict())
    torch.nn.Module.to(copied, torch.bfloat16)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    copied.generation_config = GenerationConfig(do_sample=False, **ends)  # type: ignore[no-untyped-call]
    copied.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    publish(folder, out / trainer.name)
    shutil.rmtree(folder)


def mean_of_last(values: list[float]) -> float:
    """The mean since the last report."""
    return float(np.mean(values[-REPORT_EVERY:]))


@dataclass
class Journal:
    """What a run writes down: its plan, its losses, its time."""

    path: Path | None
    plan: Plan
    curve: list[dict[str, float]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def note(self, step: int, trainers: list[Trainer]) -> None:
        """Add a point to the curve and save it."""
        point = {t.name: round(mean_of_last(t.losses), 4) for t in trainers}
        seconds = round(time.monotonic() - self.started, 1)
        self.curve.append({"step": step, "seconds": seconds, **point})
        print(self.curve[-1], flush=True)
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            report = {"python": platform.python_version(), "torch": torch.__version__,
                      "plan": vars(self.plan), "mix": data.MIX, "curve": self.curve}  # fmt: skip
            self.path.write_text(json.dumps(report, indent=1) + "\n")


def train(args: argparse.Namespace, plan: Plan) -> None:
    """The whole run."""
    corpus = data.load_corpus()
    raw = train_tokenizer(data.sample_text(plan.seed, corpus))
    tokenizer = for_transformers(raw)
    total = plan.steps * plan.batch * SEQUENCE
    tokens = data.training_tokens(total, plan.seed, corpus, raw)
    print(f"{len(tokens.ids):,} tokens", flush=True)
    torch.manual_seed(plan.seed)
    trainers = [Trainer(name, build(shape, tokenizer), plan) for name, shape in SHAPES.items()]
    journal, saved = Journal(args.curve, plan), time.monotonic()
    for step, (ids, weights) in enumerate(batches(tokens, plan), 1):
        for trainer in trainers:
            trainer.step(step - 1, ids, weights)
        if step % REPORT_EVERY == 0:
            journal.note(step, trainers)
        if step == plan.steps or time.monotonic() - saved > args.save_every:
            for trainer in trainers:
                save(trainer, tokenizer, args.out)
            saved = time.monotonic()


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="folder for target/ and draft/")
    parser.add_argument("--curve", type=Path, help="JSON file for the loss curve")
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save-every", type=float, default=240.0, help="seconds")
    parser.add_argument("--quick", action="store_true", help="a smoke run of 20 steps")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    train(args, Plan(seed=args.seed, steps=20 if args.quick else args.steps))


if __name__ == "__main__":
    main()
