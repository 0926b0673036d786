"""The arguments ``system_speculation`` and ``predict`` of ``generate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from inferd.model import Model
from inferd.protocol.errors import InvalidRequest
from inferd.protocol.speculation import SpeculationSettings, check_settings
from inferd.protocol.tokens import checked_tokens


@dataclass(frozen=True)
class SpecConfig:
    """How the runtime drafts: ``generate(system_speculation=SpecConfig(...))``. Raises InvalidRequest, which names the argument.

    ``sources``: where drafts come from, some of ``predicted`` (what ``predict=`` says), ``grammar`` (tokens that the
    constraint leaves no choice about; it needs ``constrain=``), ``ngram`` (what followed the same tokens before in this
    context), ``corpus`` (what followed them in your tenant's earlier contexts) and ``draft_model``. Empty: all that the server
    has for the request, but ``corpus``, which learns from the request and so is used only where it is named.

    ``max_draft`` (1 to 64): tokens that one step verifies at most. ``tree``: whether guesses that differ may be verified
    side by side. ``draft_model``: which of the server's draft models, by name; "" lets the server choose.

    ``verifier``: ``agreement`` accepts a token when it is the one that would have been drawn, so a seed gives the same
    tokens as without speculation. ``rejection`` (Leviathan et al. 2023) accepts a draft model's token with the chance that
    keeps the distribution: a seed then gives other tokens than without. It needs ``sources=["draft_model"]``.
    """

    sources: Sequence[str] = ()
    max_draft: int = 16
    tree: bool = True
    draft_model: str | Model = ""
    verifier: str = "agreement"

    def __post_init__(self) -> None:
        if isinstance(self.sources, str) or not isinstance(self.sources, Sequence):
            raise InvalidRequest(f"sources must be a list of names, not {self.sources!r}")
        if not isinstance(self.tree, bool):
            raise InvalidRequest(f"tree must be True or False, not {self.tree!r}")
        if not isinstance(self.draft_model, (str, Model)):
            raise InvalidRequest(f"draft_model must be a name or a Model, not {self.draft_model!r}")
        check_settings(self.to_wire())

    def to_wire(self) -> SpeculationSettings:
        """Return the settings as ``generate.start`` sends them."""
        name = self.draft_model.name if isinstance(self.draft_model, Model) else self.draft_model
        return SpeculationSettings(list(self.sources), self.max_draft, self.tree, name, self.verifier)


SystemSpeculation: TypeAlias = bool | Literal["auto"] | SpecConfig
Prediction: TypeAlias = str | Sequence[int]


@dataclass(frozen=True)
class RuntimeDrafts:
    """The checked arguments ``system_speculation`` and ``predict``, as ``generate.start`` carries them."""

    on: bool = False
    settings: SpeculationSettings | None = None
    predicted: tuple[int, ...] = ()
    predicted_text: str = ""

    @classmethod
    def checked(cls, speculation: SystemSpeculation, predict: Prediction | None) -> RuntimeDrafts:
        """Return the arguments as they are sent. Raises InvalidRequest, which names one of the wrong type."""
        predicted = () if predict is None or isinstance(predict, str) else tuple(checked_tokens("predict", predict))
        text = predict if isinstance(predict, str) else ""
        if isinstance(speculation, bool):
            return cls(speculation, None, predicted, text)
        if speculation == "auto":
            return cls(True, SpeculationSettings(auto=True), predicted, text)
        if not isinstance(speculation, SpecConfig):
            raise InvalidRequest(f'system_speculation must be True, False, "auto" or a SpecConfig, not {speculation!r}')
        return cls(True, speculation.to_wire(), predicted, text)
