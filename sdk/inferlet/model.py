"""``Model`` and ``Tokenizer``; and what Pie's later programs, which know one model, call on this module.

Those leave the model out of every call (``Context()``, ``chat.user(text)``, ``model.encode(text)``): it is the default one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload

from inferd.protocol import (
    Detokenize,
    GetVocabulary,
    ListModels,
    ModelInfo,
    NotFound,
    PackedVocabulary,
    TokenBytes,
    Tokenize,
)
from inferd.transport import Port, current_port
from inferd.vocabulary import TokenVocabulary
from inferlet.blocking import call
from inferlet.refused import refuse

__all__ = [
    "architecture", "decode", "default_system_speculation", "encode", "name", "special_tokens", "split_regex", "vocabs",
]  # fmt: skip
P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Tokenizer:
    """Text to token ids and back. Made by :meth:`Model.tokenizer`."""

    def __init__(self, port: Port, info: ModelInfo) -> None:
        self.port = port
        self.info = info

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text. The names of special tokens in it are these tokens."""
        return list(call(self.port, Tokenize(text, self.info.name, special=True)).tokens)

    def decode(self, tokens: list[int]) -> str:
        """Return the text of token ids, with the names of special tokens."""
        text: str = call(self.port, Detokenize(list(tokens), self.info.name, special=True)).text
        return text

    def vocabs(self) -> tuple[list[int], list[bytes]]:
        """Return all token ids, and the bytes that each stands for."""
        vocabulary = self._vocabulary()
        return list(range(len(vocabulary))), list(vocabulary)

    def special_tokens(self) -> tuple[list[int], list[bytes]]:
        """Return the ids of the special tokens, and their names."""
        special = self._vocabulary().special
        return list(special.values()), [name.encode() for name in special]

    def split_regex(self) -> NoReturn:
        """Refuse: a tokenizer need not have one."""
        refuse("Tokenizer.split_regex", "the runtime does not tell how a tokenizer splits a text; encode() does it")

    def pieces(self, tokens: list[int]) -> list[bytes]:
        """Return the bytes of some tokens. What was asked once is known. (Not in Pie.)"""
        known: dict[int, bytes] = self.port.shared.setdefault(("inferlet pieces", self.info.name), {})
        unknown = sorted({token for token in tokens if token not in known})
        if unknown:
            vocabulary = self.port.vocabularies.get(self.info.name)
            if vocabulary is None:
                known.update(self._asked(unknown))
            else:
                known.update((token, vocabulary[token]) for token in unknown)
        return [known[token] for token in tokens]

    def _asked(self, tokens: list[int]) -> dict[int, bytes]:
        pieces = call(self.port, TokenBytes(tokens, self.info.name)).pieces
        return {token: base64.b64decode(piece) for token, piece in zip(tokens, pieces, strict=True)}

    def _vocabulary(self) -> TokenVocabulary:
        known = self.port.vocabularies.get(self.info.name)
        if known is None:
            packed: PackedVocabulary = call(self.port, GetVocabulary(self.info.name))
            known = self.port.vocabularies[self.info.name] = TokenVocabulary(packed)
        return known


class Model:
    """A model that the runtime serves. Made by :meth:`load`."""

    def __init__(self, port: Port, info: ModelInfo) -> None:
        self.port = port
        self.info = info

    @classmethod
    def load(cls, name: str = "") -> Model:
        """Return the model of that name; "" is the default one. Raises NotFound."""
        port = current_port()
        served = served_models(port)
        for info in served:
            if name in ("", info.name):
                return cls(port, info)
        raise NotFound(f"no model {name!r}; served: {', '.join(info.name for info in served) or 'none'}")

    @property
    def name(self) -> str:
        """Its name. (Not in Pie.)"""
        return self.info.name

    def tokenizer(self) -> Tokenizer:
        """Return its tokenizer."""
        return Tokenizer(self.port, self.info)

    def default_system_speculation(self) -> bool:
        """Return False: the runtime drafts where a program asks for it."""
        return False

    def speak(self, text: str) -> NoReturn:
        """Refuse: there is no speech."""
        refuse("Model.speak", "the runtime serves models of text; there is no speech")

    def __repr__(self) -> str:
        return f"Model({self.name!r})"


def served_models(port: Port) -> list[ModelInfo]:
    """Return what the runtime serves, the default model first."""
    known: list[ModelInfo] | None = port.shared.get("inferlet models")
    if known is None:
        known = port.shared["inferlet models"] = list(call(port, ListModels()).models)
    return known


class ModelFunction(Protocol[P, T_co]):
    """A function of a model, which may be left out."""

    @overload
    def __call__(self, model: Model, *args: P.args, **kwargs: P.kwargs) -> T_co: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


def optional_model(function: Callable[Concatenate[Model, P], T]) -> ModelFunction[P, T]:
    """Return the function for calls with and without a model."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> T:
        given = "model" in kwargs or bool(args and isinstance(args[0], Model))
        return function(*args, **kwargs) if given else function(Model.load(), *args, **kwargs)

    return cast(ModelFunction[P, T], called)


def model_and_name(first: Model | str, second: str | None) -> tuple[Model, str]:
    """Return the arguments of calls with a model and a name, or with the name alone. Raises TypeError for others."""
    found = (first, second) if second is not None else (Model.load(), first)
    if not (isinstance(found[0], Model) and isinstance(found[1], str)):
        raise TypeError(f"a model and a name, or a name, not {first!r} and {second!r}")
    return found[0], found[1]


def name() -> str:
    """Return the name of the default model."""
    return Model.load().name


def architecture() -> NoReturn:
    """Refuse: programs are not told it."""
    refuse("model.architecture", "a program is told a model's name and sizes, not what it is made of")


def default_system_speculation() -> bool:
    """Return False: the runtime drafts where a program asks for it."""
    return Model.load().default_system_speculation()


def encode(text: str) -> list[int]:
    """As :meth:`Tokenizer.encode`."""
    return Model.load().tokenizer().encode(text)


def decode(tokens: list[int]) -> str:
    """As :meth:`Tokenizer.decode`."""
    return Model.load().tokenizer().decode(tokens)


def vocabs() -> tuple[list[int], list[bytes]]:
    """As :meth:`Tokenizer.vocabs`."""
    return Model.load().tokenizer().vocabs()


def special_tokens() -> tuple[list[int], list[bytes]]:
    """As :meth:`Tokenizer.special_tokens`."""
    return Model.load().tokenizer().special_tokens()


def split_regex() -> NoReturn:
    """Refuse, as :meth:`Tokenizer.split_regex` does."""
    Model.load().tokenizer().split_regex()
