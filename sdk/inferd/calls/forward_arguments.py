"""Converts the arguments of ``forward`` and ``verify`` to the form that the wire carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from inferd.masks import checked_mask
from inferd.probes import Distribution, Entropy, Logits, Logprob, Logprobs, RowProbe
from inferd.protocol.errors import InvalidRequest
from inferd.protocol.passes import Probe
from inferd.protocol.ranges import check_one_each
from inferd.protocol.speculation import check_parents
from inferd.protocol.tokens import checked_tokens

KINDS = (Logits, Distribution, Logprob, Logprobs, Entropy)


def wire_probes(probes: Iterable[RowProbe]) -> list[Probe]:
    """Return the probes as requests. Raises InvalidRequest for something else."""
    if not isinstance(probes, Iterable):
        raise InvalidRequest(f"probes must be a list of probes, not {probes!r}")
    asked = list(probes)
    for index, probe in enumerate(asked):
        if not isinstance(probe, KINDS):
            raise InvalidRequest(
                f"probes[{index}] must be Logits(), Distribution(), Logprob(token), Logprobs(tokens) or Entropy(), "
                f"not {probe!r}"
            )
    return [probe.to_wire() for probe in asked]


def wire_mask(mask: Iterable[int] | None) -> tuple[list[int] | None, str]:
    """Return the allowed token ids, or their bits. Raises InvalidRequest for what is no token id."""
    return (None, "") if mask is None else checked_mask("mask", mask).to_wire()


def checked_bias(bias: Mapping[int, float] | None) -> tuple[list[int], list[float]]:
    """Return token ids and what is added to their logits. Raises InvalidRequest for what is no number."""
    if bias is None:
        return [], []
    if not isinstance(bias, Mapping):
        raise InvalidRequest(f"bias must map token ids to numbers, not {bias!r}")
    for token, value in bias.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidRequest(f"bias[{token}] must be a number, not {value!r}")
    return checked_tokens("bias", bias), [float(value) for value in bias.values()]


def attention_runs(rows: Sequence[Sequence[bool]] | None, count: int) -> list[list[int]]:
    """Return each row as run lengths: hidden, seen, hidden, ... Raises InvalidRequest unless there is one row per token."""
    if rows is None:
        return []
    if not isinstance(rows, Sequence):
        raise InvalidRequest(f"attention_mask must hold one row for each of the {count} tokens, not {rows!r}")
    check_one_each("attention_mask", "row", len(rows), count)
    return [_runs(index, row) for index, row in enumerate(rows)]


def _runs(index: int, row: Sequence[bool]) -> list[int]:
    if not isinstance(row, Iterable) or isinstance(row, (str, bytes)) or not all(seen in (0, 1) for seen in row):
        raise InvalidRequest(f"attention_mask[{index}] must hold True and False only")
    runs = [(bool(seen), sum(1 for _ in run)) for seen, run in groupby(row)]
    return [*([0] if runs and runs[0][0] else []), *(length for _, length in runs)]


def checked_draft(tokens: Sequence[int], parents: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """Return a draft's token ids and their parents, none for a chain. Raises InvalidRequest."""
    ids = checked_tokens("tokens", tokens)
    if parents is not None and (isinstance(parents, (str, bytes)) or not isinstance(parents, Sequence)):
        raise InvalidRequest(f"parents must be a list of whole numbers, not {parents!r}")
    if parents is not None:  # an empty list is no chain here, as it is on the wire
        check_parents(parents, len(ids))
    return ids, list(parents or ())


def checked_positions(positions: Sequence[int] | None, count: int) -> list[int]:
    """Return one position per token. Raises InvalidRequest for another number of them, or a negative one."""
    if positions is None:
        return []
    checked = checked_tokens("positions", positions)
    check_one_each("positions", "number", len(checked), count)  # an empty list leaves them out on the wire
    return checked
