"""Adapters as programs and scripts use them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from session_runtime import SessionRuntime

import inferd
from inferd import Adapter, Context, InvalidRequest, NotFound, Sampler
from inferd.protocol import FlushContext, Forward, LoadAdapter, StartGenerate, UploadAdapter
from inferd.protocol.adapters import UPLOAD_CHUNK_BYTES

GREEDY = Sampler.argmax()
CONFIG = json.dumps({"peft_type": "LORA", "r": 5, "target_modules": ["q_proj"]})


async def test_a_folder_is_loaded_listed_used_and_dropped(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "adapter_config.json").write_text(CONFIG)
    (tmp_path / "mine" / "adapter_model.safetensors").write_bytes(b"weights")
    with SessionRuntime() as runtime:
        adapter = await Adapter.load(tmp_path / "mine")
        assert (adapter.name, adapter.model, adapter.rank, adapter.bytes, adapter.shared) == (
            "mine",
            "null",
            5,
            7,
            False,
        )
        named = await Adapter.load(str(tmp_path / "mine"), name="named")
        assert await Adapter.list() == [adapter, named]
        for chosen in (adapter, "named", None):
            await Context().user("u").generate(GREEDY, adapter=chosen, max_tokens=4).collect_text()
        assert [request.adapter for request in runtime.of_kind(StartGenerate)] == ["mine", "named", ""]
        await adapter.drop()
        with pytest.raises(NotFound):
            await Context().user("u").generate(GREEDY, adapter=adapter).collect_text()
        with pytest.raises(NotFound):
            await adapter.drop()


async def test_flush_and_forward_name_the_adapter() -> None:
    with SessionRuntime() as runtime:
        adapter = await Adapter.load_bytes(CONFIG, b"weights", name="a")
        ctx = await Context().append("abc").flush(adapter)
        await ctx.forward([65], adapter="a")
        await ctx.forward([65])
        assert runtime.of_kind(FlushContext)[0].adapter == "a"
        assert [request.adapter for request in runtime.of_kind(Forward)] == ["a", ""]


async def test_large_weights_travel_in_pieces(wire: Callable[..., AbstractAsyncContextManager[Any]]) -> None:
    weights = bytes(range(256)) * (UPLOAD_CHUNK_BYTES // 256) * 2 + b"rest"
    runtime = SessionRuntime()
    async with wire(runtime) as server, inferd.connect(server.url):
        adapter = await Adapter.load_bytes(CONFIG, weights, name="large")
    pieces = runtime.of_kind(UploadAdapter)
    assert b"".join(piece.data for piece in pieces) == weights
    assert [len(piece.data) for piece in pieces] == [UPLOAD_CHUNK_BYTES, UPLOAD_CHUNK_BYTES, 4]
    assert runtime.of_kind(LoadAdapter) == [LoadAdapter("large", CONFIG, pieces[-1].upload)]
    assert adapter.bytes == len(weights)


@pytest.mark.parametrize("adapter", ["", 3, b"a", ["a"]])
async def test_what_is_no_adapter_is_refused_before_anything_is_sent(adapter: Any) -> None:
    with SessionRuntime() as runtime:
        ctx = Context().user("u")
        with pytest.raises(InvalidRequest, match="adapter must be"):
            ctx.generate(GREEDY, adapter=adapter)
        for call in (lambda: ctx.flush(adapter), lambda: ctx.forward([65], adapter=adapter)):
            with pytest.raises(InvalidRequest, match="adapter must be"):
                await call()
        assert runtime.requests == []


@pytest.mark.parametrize(("config", "weights"), [(b"{}", b"w"), (CONFIG, "w"), (CONFIG, b"")])
async def test_files_of_the_wrong_kind(config: Any, weights: Any) -> None:
    with SessionRuntime() as runtime:
        with pytest.raises(InvalidRequest, match="config must be the text"):
            await Adapter.load_bytes(config, weights, name="a")
        assert runtime.requests == []


async def test_a_folder_without_the_files(tmp_path: Path) -> None:
    with SessionRuntime() as runtime:
        with pytest.raises(FileNotFoundError):
            await Adapter.load(tmp_path)
        assert runtime.requests == []
