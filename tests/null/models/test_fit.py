"""The arithmetic of fitting: needs, pages, advice that holds, refusals, and one budget for several models."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, strategies as st

from inferd.protocol import LimitExceeded
from inferd_runtime.models.fitting.fit import (
    CacheRequest,
    Fit,
    ModelSize,
    Placed,
    check_fit,
    divide_pages,
    divide_with_drafts,
    readable,
)
from inferd_runtime.models.fitting.sizing import CPU_KV_BYTES, LEAST_PAGES, default_pages, kv_budget

MIB, GIB = 1 << 20, 1 << 30
SIZE = ModelSize(
    "m", "float32", parameters=256 * MIB, weight_bytes=GIB, kv_token_bytes=64 << 10, kv_source="layers",
    step_bytes=64 * MIB, max_context=4096,
)  # fmt: skip
PAGE = SIZE.kv_token_bytes * 16


def fit(available: int, size: ModelSize = SIZE, **asked: int) -> Fit:
    return Fit(size, "cpu", CacheRequest(**asked), available)


def test_needs_are_weights_activations_and_the_least_pages() -> None:
    assert fit(0).needs == GIB + 64 * MIB + LEAST_PAGES * PAGE
    assert fit(0, pages=100).needs == GIB + 64 * MIB + 100 * PAGE
    assert fit(0, context=1000, streams=3).needs == GIB + 64 * MIB + 3 * 63 * PAGE
    assert fit(0, streams=2).needs == GIB + 64 * MIB + 2 * 256 * PAGE


def test_it_fits_to_the_byte() -> None:
    needs = fit(0).needs
    assert fit(needs).fits
    assert not fit(needs - 1).fits
    assert fit(needs).advice == ()


def test_pages_are_the_runtimes_choice_unless_more_are_asked_for() -> None:
    roomy = fit(100 * GIB)
    assert (roomy.pages, roomy.contexts) == (CPU_KV_BYTES // PAGE, 4)
    assert fit(100 * GIB, streams=9).pages == 9 * 256
    assert fit(100 * GIB, streams=9).default_pages == roomy.pages
    assert fit(100 * GIB, pages=20).pages == 20
    assert fit(100 * GIB, context=2048).contexts == 8


@pytest.mark.parametrize(
    ("available", "asked", "advice"),
    [
        (GIB, {}, ("--dtype bfloat16",)),
        (GIB + 128 * MIB, {"context": 4096}, ("--dtype bfloat16", "--context 1024")),
        (GIB + 320 * MIB, {"streams": 2}, ("--dtype bfloat16", "--context 2048", "--streams 1")),
        (GIB + 128 * MIB, {"pages": 9999}, ("--pages 64",)),
        (768 * MIB, {"pages": 9999}, ("--dtype bfloat16 --pages 448",)),
        (100 * MIB, {}, ()),
    ],
)
def test_the_advice(available: int, asked: dict[str, int], advice: tuple[str, ...]) -> None:
    assert fit(available, **asked).advice == advice


@given(
    available=st.integers(0, 4 * GIB), context=st.integers(0, 4096), streams=st.integers(0, 64), pages=st.integers(0, 3000),
    half=st.booleans(),
)  # fmt: skip
def test_every_advice_holds_alone(available: int, context: int, streams: int, pages: int, half: bool) -> None:
    asked = {"pages": pages} if pages else {"context": context, "streams": streams}
    size = dataclasses.replace(SIZE, dtype="bfloat16") if half else SIZE
    estimate = fit(available, size, **asked)
    for option in estimate.advice:
        words = option.split()
        given = dict(zip(words[::2], words[1::2], strict=True))
        changed = dict(asked)
        if given.pop("--dtype", None):
            assert not half
            sizes = {name: getattr(size, name) // 2 for name in ("weight_bytes", "kv_token_bytes", "step_bytes")}
            size = dataclasses.replace(SIZE, dtype="bfloat16", **sizes)
        changed |= {name.removeprefix("--"): int(value) for name, value in given.items()}
        assert fit(available, size, **changed).fits, option
        size = estimate.model


def test_a_model_that_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(LimitExceeded) as caught:
        check_fit([Placed(SIZE, "cpu")], lambda device: GIB, 16)
    assert "model 'm' in float32 does not fit cpu: it needs 1.1 GiB" in caught.value.message
    assert "1.0 GiB are available" in caught.value.message
    assert caught.value.detail == {"limit": "memory", "value": GIB, "raise_with": "--dtype bfloat16"}


def test_a_quantized_model_is_not_refused_because_its_size_is_not_known() -> None:
    check_fit([Placed(dataclasses.replace(SIZE, quantized="fp8"), "cpu")], lambda device: 0, 16)


def test_pages_beyond_memory_are_refused_by_name() -> None:
    with pytest.raises(LimitExceeded, match="for 999999 KV pages") as caught:
        check_fit([Placed(SIZE, "cpu", 999_999)], lambda device: 2 * GIB, 16)
    assert caught.value.detail["raise_with"] == "--pages 960"


def test_models_share_a_device_and_not_with_another() -> None:
    other = dataclasses.replace(SIZE, name="n")
    room = fit(0).needs
    check_fit([Placed(SIZE, "cuda:0"), Placed(other, "cuda:1")], lambda device: room, 16)
    check_fit([Placed(SIZE, "cuda:0"), Placed(other, "cuda:0")], lambda device: 2 * room, 16)
    with pytest.raises(LimitExceeded, match="model 'n' in float32 does not fit cuda:0 beside m"):
        check_fit([Placed(SIZE, "cuda:0"), Placed(other, "cuda:0")], lambda device: 2 * room - 1, 16)


def test_one_budget_is_divided_and_not_counted_twice() -> None:
    models = [Placed(dataclasses.replace(SIZE, name=name), "cpu") for name in "abc"]
    alone = divide_pages(models[:1], lambda device: 100 * GIB, 16)
    assert alone == [CPU_KV_BYTES // PAGE]
    assert divide_pages(models, lambda device: 100 * GIB, 16) == [alone[0] // 3] * 3


def test_given_pages_come_off_what_is_divided() -> None:
    given, left = Placed(SIZE, "cuda:0", 512), Placed(SIZE, "cuda:0")
    assert divide_pages([given, left], lambda device: GIB, 16) == [512, 460]  # 0.9 of what is left
    assert divide_pages([given, given], lambda device: GIB, 16) == [512, 512]


def test_a_draft_model_gets_its_targets_pages_out_of_its_targets_share() -> None:
    target, other, draft = (
        Placed(SIZE, "cpu"),
        Placed(SIZE, "cpu"),
        Placed(SIZE, "cpu").with_kv(SIZE.kv_token_bytes // 4),
    )
    whole = CPU_KV_BYTES // PAGE
    assert divide_with_drafts([target, draft], [0], lambda device: 100 * GIB, 16) == [whole * 4 // 5] * 2
    pages = divide_with_drafts([target, other, draft], [1], lambda device: 100 * GIB, 16)
    assert pages == [whole // 2, whole * 2 // 5, whole * 2 // 5]
    assert (
        divide_with_drafts([target, dataclasses.replace(draft, pages=40)], [0], lambda device: 100 * GIB, 16)[1] == 40
    )
    assert divide_with_drafts([dataclasses.replace(target, pages=64), draft], [0], lambda device: GIB, 16) == [64, 64]
    away = dataclasses.replace(draft, device="cuda:0")
    assert divide_with_drafts([target, away], [0], lambda device: 100 * GIB, 16)[0] == whole


@given(
    st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(0, 500)), min_size=1, max_size=5), st.integers(0, 64 * GIB)
)
def test_all_pages_together_stay_in_the_budget(sizes: list[tuple[int, int]], free: int) -> None:
    models = [Placed(dataclasses.replace(SIZE, kv_token_bytes=kv), "cuda:0", pages) for kv, pages in sizes]
    chosen = divide_pages(models, lambda device: free, 16)
    ours = [
        count * model.size.kv_token_bytes * 16
        for count, model in zip(chosen, models, strict=True)
        if not model.pages and count > LEAST_PAGES
    ]
    assert sum(ours) <= kv_budget("cuda:0", free)
    assert all(count >= LEAST_PAGES for count, model in zip(chosen, models, strict=True) if not model.pages)


def test_the_default_is_bounded_by_streams_and_memory() -> None:
    assert default_pages(1, 160, 16, 10**9) == 640
    assert default_pages(1 << 20, 160, 16, 100 << 20) == 100
    assert default_pages(1 << 20, 160, 16, 0) == LEAST_PAGES
    assert kv_budget("cpu", GIB) == GIB // 2
    assert kv_budget("cpu", 64 * GIB) == CPU_KV_BYTES
    assert kv_budget("cuda:0", 64 * GIB) == int(57.6 * GIB)


def test_bytes_for_people() -> None:
    assert [readable(n) for n in (0, 1023, 1024, 3 * MIB + MIB // 5, 5000 * GIB)] == [
        "0 B", "1023 B", "1.0 KiB", "3.2 MiB", "4.9 TiB",
    ]  # fmt: skip
