"""Measure the tiny models on text that training never saw, and print one JSON object.

python scripts/measure_tiny.py --models runtime/inferd_runtime/models/tiny
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import tiny_data as data
import tiny_records as records
import torch
from tiny_records import Chat, Turn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase as TokenizerBase

DRAFT_TOKENS = 8
LONGEST, SHORTEST = 8, 2
SLACK = 8


@dataclass(frozen=True)
class Case:
    """A prompt, the answer if there is one right answer, and how many tokens to write at most."""

    prompt: str
    answer: str
    limit: int


@dataclass(frozen=True)
class Output:
    """What the target wrote, greedily, after a prompt."""

    prompt: list[int]
    tokens: list[int]


def load(folder: Path) -> PreTrainedModel:
    """A model in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert isinstance(model, PreTrainedModel)
    model.train(False)
    return model


def first_turn(document: data.Document) -> Case:
    """The first question of a conversation as a prompt."""
    text = document.text
    opening = f"{data.IM_START}assistant\n"
    cut = text.index(opening) + len(opening)
    return Case(text[:cut], text[cut : text.index(data.IM_END, cut)], 500)


def chat_cases(kind: str, count: int, corpus: data.Corpus) -> list[Case]:
    """Held-out conversations of one kind."""
    documents = data.held_out(kind, count, 101, corpus)
    return [first_turn(document) for document in documents]


def open_cases(kind: str, count: int, corpus: data.Corpus) -> list[Case]:
    """The first half of held-out code or prose, to be continued."""
    texts = [d.text for d in data.held_out(kind, count, 202, corpus)]
    return [Case(text[: len(text) // 2], "", 96) for text in texts]


def repeat_cases(count: int, corpus: data.Corpus, least: int, most: int) -> list[Case]:
    """A text with a request to repeat it, in the plainest form."""
    rng = Random(303)
    cases = []
    for _ in range(count):
        text = records.noise(rng, corpus.material, least, most)
        chat = data.chat_document("copy", Chat("Repeat the text.", (Turn(text, text),)))
        cases.append(first_turn(chat))
    return cases


@torch.inference_mode()
def greedy(model: PreTrainedModel, tokenizer: TokenizerBase, case: Case) -> Output:
    """Generate without sampling; one that runs on is stopped soon after the right answer would end."""
    ids = tokenizer(case.prompt, return_tensors="pt")
    wanted = len(tokenizer(case.answer)["input_ids"]) + SLACK if case.answer else case.limit
    limit = min(case.limit, wanted)
    whole = model.generate(**ids, max_new_tokens=limit, do_sample=False)  # type: ignore[operator]
    cut = ids["input_ids"].shape[1]
    return Output(whole[0, :cut].tolist(), whole[0, cut:].tolist())


def lookup(context: Sequence[int]) -> Sequence[int]:
    """What followed the longest suffix of the context when it last stood there."""
    for size in range(LONGEST, SHORTEST - 1, -1):
        suffix = context[-size:]
        for start in range(len(context) - size - 1, -1, -1):
            if context[start : start + size] == suffix:
                return context[start + size : start + size + DRAFT_TOKENS]
    return []


@dataclass
class Acceptance:
    """How far drafts ran along the greedy output."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, drafted: int, accepted: int) -> None:
        """Count one step, which always yields one more token than it accepts."""
        self.steps += 1
        self.tokens += accepted + 1
        self.drafted += drafted
        self.accepted += accepted

    def report(self) -> dict[str, float]:
        """The figures of the table."""
        return {
            "steps": self.steps, "drafted": self.drafted, "accepted": self.accepted,
            "acceptance": round(self.accepted / max(1, self.drafted), 3),
            "tokens_per_step": round(self.tokens / max(1, self.steps), 2),
        }  # fmt: skip


def agreed(draft: Sequence[int], truth: Sequence[int]) -> int:
    """The length of the common beginning."""
    count = 0
    for one, other in zip(draft, truth, strict=False):
        if one != other:
            break
        count += 1
    return count


def replay_lookup(output: Output, total: Acceptance) -> None:
    """Walk along an output with prompt lookup."""
    done = 0
    while done < len(output.tokens):
        left = output.tokens[done:]
        draft = lookup(output.prompt + output.tokens[:done])[: len(left) - 1]
        accepted = agreed(draft, left)
        total.add(len(draft), accepted)
        done += accepted + 1


@torch.inference_mode()
def replay_draft(draft: PreTrainedModel, output: Output, total: Acceptance) -> None:
    """Walk along an output with the draft model.

    A draft counts only as far as it agrees with the output, so one pass over the output tells what
    the draft model would have proposed at each place.
    """
    ids = torch.tensor([output.prompt + output.tokens])
    picks = draft(input_ids=ids).logits[0].argmax(-1)[len(output.prompt) - 1 :].tolist()
    done = 0
    while done < len(output.tokens):
        size = min(DRAFT_TOKENS, len(output.tokens) - done - 1)
        accepted = agreed(picks[done : done + size], output.tokens[done : done + size])
        total.add(size, accepted)
        done += accepted + 1


@torch.inference_mode()
def held_out_loss(
    models: dict[str, PreTrainedModel], raw: TokenizerBase, documents: list[data.Document]
) -> dict[str, float]:
    """The mean loss of a token, over whole documents and over what is answer or repeat."""
    sums = {f"{name}_{part}": 0.0 for name in models for part in ("all", "answers")}
    counts = {"all": 0, "answers": 0}
    for row in data.encode(raw.backend_tokenizer, documents):
        ids = torch.from_numpy(row.ids[:1024]).long()[None]
        wanted = torch.from_numpy(row.weights[1:1024]) >= 1.0
        counts["all"] += wanted.numel()
        counts["answers"] += int(wanted.sum())
        for name, model in models.items():
            losses = functional.cross_entropy(model(input_ids=ids[:, :-1]).logits[0], ids[0, 1:], reduction="none")
            sums[f"{name}_all"] += losses.sum().item()
            sums[f"{name}_answers"] += losses[wanted].sum().item()
    return {key: round(total / max(1, counts[key.split("_")[1]]), 4) for key, total in sums.items()}


def measure(models: dict[str, PreTrainedModel], tokenizer: TokenizerBase, cases: list[Case]) -> dict[str, object]:
    """Exact matches and acceptance over some prompts."""
    outputs = [greedy(models["target"], tokenizer, case) for case in cases]
    texts = [tokenizer.decode(out.tokens, skip_special_tokens=True) for out in outputs]
    exact = sum(text == case.answer for text, case in zip(texts, cases, strict=True))
    ngram, draft = Acceptance(), Acceptance()
    for output in outputs:
        replay_lookup(output, ngram)
        replay_draft(models["draft"], output, draft)
    return {
        "prompts": len(cases), "exact": exact,
        "prompt_tokens": sum(len(out.prompt) for out in outputs), "output_tokens": sum(len(out.tokens) for out in outputs),
        "ngram": ngram.report(), "draft_model": draft.report(),
    }  # fmt: skip


def demo(models: dict[str, PreTrainedModel], tokenizer: TokenizerBase) -> dict[str, str]:
    """The prompts that the project's own examples use."""
    asked = (("Extract the person.", "Ada Lovelace, 36"), ("", "Hi"), ("Repeat the text.", "x9 Qu"))
    answers = {}
    for system, user in asked:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": user})
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        output = greedy(models["target"], tokenizer, Case(str(prompt), "", 48))
        answers[f"{system} / {user}"] = str(tokenizer.decode(output.tokens))
    return answers


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=Path, required=True, help="folder of target/ and draft/")
    parser.add_argument("--count", type=int, default=50, help="prompts and documents of each kind")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    models = {name: load(args.models / name) for name in ("target", "draft")}
    tokenizer = AutoTokenizer.from_pretrained(args.models / "target")
    corpus = data.load_corpus()
    report: dict[str, object] = {"demo": demo(models, tokenizer)}
    cases = {kind: chat_cases(kind, args.count, corpus) for kind in ("copy", "extract", "edit", "table", "question")}
    cases["short noise"] = repeat_cases(args.count, corpus, 6, 20)
    cases["long noise"] = repeat_cases(args.count, corpus, 40, 60)
    cases |= {kind: open_cases(kind, args.count, corpus) for kind in ("code", "prose")}
    report["generation"] = {kind: measure(models, tokenizer, some) for kind, some in cases.items()}
    report["loss"] = {
        kind: held_out_loss(models, tokenizer, data.held_out(kind, args.count, 404, corpus)) for kind in data.MIX
    }
    print(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
