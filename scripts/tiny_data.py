"""The text the tiny models are trained on, and how it becomes one long row of tokens.

Everything comes from what each Python installation has (the standard library's sources and its
`pydoc_data` topics) or from the generators in `tiny_records`; nothing is downloaded.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from random import Random

import numpy as np
import tiny_records as records
from numpy.typing import NDArray
from tiny_records import Chat, Material, Turn
from tokenizers import Tokenizer

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# Share of the training tokens that each kind gets.
MIX = {
    "copy": 0.15, "extract": 0.20, "edit": 0.09, "table": 0.07, "question": 0.04, "talk": 0.01,
    "repeat": 0.08, "code": 0.22, "prose": 0.14,
}  # fmt: skip
# What the loss counts: questions are partly noise that nothing could predict, answers are the point.
QUESTION_WEIGHT, ANSWER_WEIGHT, NOISE_WEIGHT = 0.3, 2.0, 0.2
# A document's place in the run is a random number from 0 to 1, raised to this power.
EARLY = {"repeat": 2.5, "copy": 1.5}
HELD_OUT_ONE_IN = 50


@dataclass(frozen=True)
class Document:
    """A text, as pieces with the weight that their tokens have in the loss."""

    kind: str
    pieces: tuple[tuple[str, float], ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(piece for piece, _ in self.pieces)

    @property
    def held_out(self) -> bool:
        """Whether this text is for evaluation: decided by its hash, so never seen in training."""
        digest = hashlib.blake2b(self.text.encode("utf-8", "replace"), digest_size=8).digest()
        return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def chat_document(kind: str, chat: Chat) -> Document:
    """A conversation in ChatML, as the tokenizer's chat template writes it."""
    pieces: list[tuple[str, float]] = []
    if chat.system:
        pieces.append((f"{IM_START}system\n{chat.system}{IM_END}\n", QUESTION_WEIGHT))
    for turn in chat.turns:
        opening = f"{IM_START}user\n{turn.user}{IM_END}\n{IM_START}assistant\n"
        pieces += [(opening, QUESTION_WEIGHT), (f"{turn.answer}{IM_END}", ANSWER_WEIGHT)]
        pieces.append(("\n", QUESTION_WEIGHT))
    return Document(kind, tuple(pieces))


def library_sources() -> list[str]:
    """The standard library's own modules, without tests and generated tables."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"test", "tests", "idlelib", "site-packages", "encodings", "lib2to3", "pydoc_data"}
    found = []
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if not skipped & set(inside.parts) and path.stat().st_size < 200_000:
            found.append(path.read_text("utf-8", "replace"))
    return found


def docstrings(source: str) -> Iterator[tuple[str, str]]:
    """Each documented name of a module, with its text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and text.isascii() and len(text) > 30:
                yield node.name, text


def chunks(text: str, size: int) -> Iterator[str]:
    """Whole lines, about `size` characters together."""
    lines: list[str] = []
    held = 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        held += len(line)
        if held >= size:
            yield "".join(lines)
            lines, held = [], 0
    if held > size // 4:
        yield "".join(lines)


def sentences_of(text: str) -> list[str]:
    """The plain sentences of a text."""
    flat = re.sub(r"\s+", " ", text)
    return [s for s in re.findall(r"[A-Z][^.!?]{20,160}[.!?]", flat) if s.isascii()]


def snippets_of(source: str) -> Iterator[str]:
    """Short runs of code without blank lines, as one would paste them."""
    for block in re.split(r"\n\s*\n", source):
        lines = block.strip("\n").split("\n")
        if 2 <= len(lines) <= 12 and len(block) < 500 and block.isascii():
            cut = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
            yield "\n".join(line[cut:] for line in lines)


@dataclass(frozen=True)
class Corpus:
    """The real text, cut up."""

    code: list[str]
    prose: list[str]
    documented: list[tuple[str, str]]
    material: Material


def load_corpus() -> Corpus:
    """Read the standard library once."""
    sources = library_sources()
    documented = [pair for source in sources for pair in docstrings(source)]
    manual = [text for _, text in sorted(topics.items())]
    code = [chunk for source in sources for chunk in chunks(source, 1400)]
    prose = [chunk for text in manual for chunk in chunks(text, 1200)]
    readable = "\n".join(manual + [text for _, text in documented])
    vocabulary = sorted(set(re.findall(r"[A-Za-z]{2,12}", readable)))
    snippets = [one for source in sources for one in snippets_of(source)]
    material = Material(sentences_of(readable), snippets, vocabulary)
    return Corpus(code, prose, documented, material)


def repeat_document(rng: Random, material: Material) -> Document:
    """The same noise two to four times: only a model that looks back can predict the rest."""
    if rng.random() < 0.8:
        text = records.noise(rng, material, 3, rng.choice((8, 16, 32)))
    else:
        lines = rng.choice(material.snippets).splitlines()
        rng.shuffle(lines)
        text = "\n".join(lines)
    gap = rng.choice(("\n", "\n\n", " ", "\n---\n"))
    again = (gap + text) * rng.randint(1, 4)
    return Document("repeat", ((text, NOISE_WEIGHT), (again, 1.0)))


def code_document(rng: Random, corpus: Corpus) -> Document:
    """A piece of source, sometimes as a chat that completes it."""
    if rng.random() < 0.8:
        return Document("code", ((rng.choice(corpus.code), 1.0),))
    lines = rng.choice(corpus.code).splitlines()[:24]
    cut = max(1, len(lines) // 2)
    ask = rng.choice(("Complete the code.", "Continue the code.", "Continue this code."))
    turn = Turn(f"{ask}\n" + "\n".join(lines[:cut]), "\n".join(lines[cut:]))
    return chat_document("code", Chat("", (turn,)))


def prose_document(rng: Random, corpus: Corpus) -> Document:
    """A page of the manual, or a documented name."""
    pick = rng.random()
    if pick < 0.5:
        return Document("prose", ((rng.choice(corpus.prose), 1.0),))
    name, text = rng.choice(corpus.documented)
    if pick < 0.75:
        return Document("prose", ((f"{name}: {text}", 1.0),))
    ask = rng.choice((f"What does {name} do?", f"Explain {name}.", f"Document {name}."))
    return chat_document("prose", Chat("", (Turn(ask, text.split("\n\n")[0]),)))


def talk(rng: Random) -> Chat:
    """Small talk and counting."""
    return records.small_talk(rng) if rng.random() < 0.4 else records.counting(rng)


def make_document(kind: str, rng: Random, corpus: Corpus) -> Document:
    """A new document of a kind."""
    if kind == "repeat":
        return repeat_document(rng, corpus.material)
    if kind == "code":
        return code_document(rng, corpus)
    if kind == "prose":
        return prose_document(rng, corpus)
    if kind in ("copy", "edit"):
        make = records.copy if kind == "copy" else records.edit
        return chat_document(kind, make(rng, corpus.material))
    simple = {"extract": records.extract, "table": records.table, "question": records.question}
    return chat_document(kind, simple.get(kind, talk)(rng))


@dataclass(frozen=True)
class Tokens:
    """Token ids, and the loss weight of each."""

    ids: NDArray[np.int32]
    weights: NDArray[np.float32]


def encode(tokenizer: Tokenizer, documents: list[Document]) -> list[Tokens]:
    """Each document's tokens, closed by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encoded = []
    for document, row in zip(documents, tokenizer.encode_batch([d.text for d in documents]), strict=True):
        starts = np.array([start for start, _ in row.offsets])
        ends = np.cumsum([len(piece) for piece, _ in document.pieces])
        weights = np.array([weight for _, weight in document.pieces], np.float32)
        which = np.minimum(np.searchsorted(ends, starts, side="right"), len(weights) - 1)
        ids = np.array([*row.ids, end], np.int32)
        encoded.append(Tokens(ids, np.append(weights[which], np.float32(1.0))))
    return encoded


def collect(kind: str, budget: int, rng: Random, corpus: Corpus, tokenizer: Tokenizer) -> list[Tokens]:
    """Training documents of one kind, until they hold `budget` tokens."""
    rows: list[Tokens] = []
    held = 0
    while held < budget:
        batch = [make_document(kind, rng, corpus) for _ in range(500)]
        for row in encode(tokenizer, [one for one in batch if not one.held_out]):
            rows.append(row)
            held += len(row.ids)
            if held >= budget:
                break
    return rows


def training_tokens(total: int, seed: int, corpus: Corpus, tokenizer: Tokenizer) -> Tokens:
    """`total` tokens of all kinds, joined; those that teach copying stand closer to the start."""
    rng = Random(seed)
    placed: list[tuple[float, Tokens]] = []
    for kind, share in MIX.items():
        for row in collect(kind, int(total * share) + 1, rng, corpus, tokenizer):
            placed.append((rng.random() ** EARLY.get(kind, 1.0), row))
    rows = [row for _, row in sorted(placed, key=lambda pair: pair[0])]
    ids = np.concatenate([row.ids for row in rows])
    return Tokens(ids, np.concatenate([row.weights for row in rows]))


def held_out(kind: str, count: int, seed: int, corpus: Corpus) -> list[Document]:
    """Documents of one kind that no training run sees."""
    rng = Random(seed)
    found: dict[str, Document] = {}
    for _ in range(400 * count):
        document = make_document(kind, rng, corpus)
        if document.held_out:
            found[document.text] = document
        if len(found) == count:
            break
    return list(found.values())


def sample_text(seed: int, corpus: Corpus, count: int = 9000) -> list[str]:
    """What the tokenizer is trained on: every kind, in the proportions of the mix."""
    rng = Random(seed)
    kinds = rng.choices(list(MIX), weights=list(MIX.values()), k=count)
    return [make_document(kind, rng, corpus).text for kind in kinds]
