"""``benchmarks/gpu.py`` in its smoke mode: every line that a device will run has run here, and no figure is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu
import gpu_bench
import gpu_model
from gpu_bench import Budget, Report

from inferd_runtime.kernels.suite import triton_kernels
from inferd_runtime.testing.recorded_host import RecordedHost

MODEL_FREE = ("sampling", "rejection", "attention", "verify")
WITH_MODEL = ("weights", "decode", "prefill", "steps", "equality", "speculation", "continuous")
KINDS = ("greedy", "temperature", "top_p", "top_k_top_p", "mask")
STAGES = ("plan", "prepare", "lay_out", "launch", "upload", "staging", "wait", "commit", "whole", "kernels")
DRAFTERS = ("none", "copy", "right", "mostly", "wrong")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The benchmark with a command line; what it printed."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
        gpu.main()
        return capsys.readouterr().out

    return run


def smoke(start: Callable[..., str], sections: Sequence[str], folder: Path) -> dict[str, Any]:
    """The JSON line of these sections, which the file repeats."""
    line: dict[str, Any] = json.loads(
        start("--smoke", "--only", ",".join(sections), "--output", str(folder)).splitlines()[-1]
    )
    saved = json.loads((folder / "gpu.json").read_text())
    assert saved["figures"].items() <= line.items()
    assert saved["samples"]
    return line


def missing(line: dict[str, Any], wanted: set[str]) -> list[str]:
    """What is no finite number there."""
    return sorted(name for name in wanted if not (isinstance(line.get(name), float) and abs(line[name]) < float("inf")))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so(start: Callable[..., str]) -> None:
    with pytest.raises(SystemExit, match="needs a CUDA device") as refused:
        start()
    assert "\n" not in str(refused.value)


def test_kernels_without_a_model(start: Callable[..., str], tmp_path: Path) -> None:
    line = smoke(start, MODEL_FREE, tmp_path)
    wanted = {"copy_tb_s", "matmul_tflop_s"} | {f"{name}_seconds" for name in MODEL_FREE}
    for shape in ("1x1", "2x2"):
        wanted |= {
            f"sample_{shape}_{kind}_{arm}_us"
            for kind in KINDS
            for arm in ("graph", "eager", "chain_eager", "chain_graph")
        }
        wanted |= {f"sample_{shape}_{kind}_chain_graph_over_ours" for kind in KINDS}
        wanted |= {f"sample_{shape}_temperature_{arm}_us" for arm in ("multinomial_eager", "race_graph")}
        wanted |= {f"sample_{shape}_{kind}_sorted_graph_us" for kind in ("top_p", "top_k_top_p")}
    for shape in ("1x2", "2x2"):
        wanted |= {
            f"rejection_{shape}_{arm}_us" for arm in ("graph", "eager", "chain_eager", "chain_graph", "agree_graph")
        }
    for batch in (1, 2):
        for context in (32, 48):
            prefix = f"attention_{context}_b{batch}"
            wanted |= {f"{prefix}_{arm}_us" for arm in ("bf16", "fp8", "torch")}
            wanted |= {
                f"{prefix}_{name}" for name in ("bf16_of_bandwidth", "fp8_of_bandwidth", "fp8_vs_bf16", "vs_torch")
            }
        wanted |= {f"verify_32_b{batch}_{form}_k{k}_vs_k0" for form in ("chain", "tree") for k in (1, 8, 16)}
    assert missing(line, wanted) == []
    assert line["left_out"] == line["failed"] == []
    assert line["smoke"] is True


def test_the_model(start: Callable[..., str], tmp_path: Path) -> None:
    line = smoke(start, WITH_MODEL, tmp_path)
    wanted = {f"{name}_seconds" for name in WITH_MODEL}
    for batch in (1, 2):
        arms = ["engine", "engine_simple", "driver", "driver_ahead"]
        wanted |= {f"decode_b{batch}_{arm}_{unit}" for arm in arms for unit in ("tok_s", "of_floor")}
        wanted.add(f"decode_b{batch}_floor_tok_s")
        wanted |= {f"step_b{batch}_{way}_{stage}_us" for way in ("recorded", "launched") for stage in STAGES}
        wanted |= {f"step_b{batch}_{way}_launches" for way in ("recorded", "launched")}
        wanted |= {f"verify_step_b{batch}_k{k}_{unit}" for k in (0, 1, 2, 4, 8, 15) for unit in ("ms", "vs_k0")}
        wanted |= {f"spec_{kind}_b{batch}{unit}" for kind in DRAFTERS for unit in ("", "_tok_s", "_as_expected")}
    for form in ("fp8", "int4"):
        wanted |= {f"weights_{form}_gb", f"weights_{form}_difference"}
        for batch in (1, 32):
            arms = ["engine", "driver_ahead"]
            wanted |= {f"weights_{form}_b{batch}_{arm}_{unit}" for arm in arms for unit in ("tok_s", "of_floor")}
            wanted.add(f"weights_{form}_b{batch}_floor_tok_s")
    wanted |= {
        f"prefill_24_{arm}_{unit}" for arm in ("driver", "engine", "transformers") for unit in ("tok_s", "of_matmul")
    }
    runs = ("again", "simple_loop", "drafts", "drafts_again", "drafts_alone")
    wanted |= {
        f"equal_{name}_fixed{width}_{unit}" for name in runs for width in (0, 8) for unit in ("tokens", "streams")
    }
    assert missing(line, wanted) == []
    assert line["left_out"] == line["failed"] == []
    assert line["kernels_agree"] == line["fuse_accepted"] == 1
    assert all(line[f"spec_{kind}_b{batch}_as_expected"] == 1 for kind in DRAFTERS for batch in (1, 2))


def test_an_unknown_section_is_named(start: Callable[..., str]) -> None:
    with pytest.raises(SystemExit, match="no section decoding"):
        start("--smoke", "--only", "ceilings,decoding")


def test_a_section_that_fails_is_named_and_costs_no_other(
    start: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(gpu, "measure_sampling", broken)
    with pytest.raises(SystemExit):
        start("--smoke", "--only", "sampling,verify")
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["failed"] == ["sampling"]
    assert "verify_32_b1_chain_k8_vs_k0" in line


def test_a_section_without_time_names_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(None, {})
    assert Budget(report, "decode", 60).allows("batch 1")
    assert not Budget(report, "decode", -1).allows("batch 8")
    assert report.left_out == ["decode: batch 8"]
    assert "batch 8" in capsys.readouterr().out


class Event:
    """A device's clock by which three milliseconds pass between any two events."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        """See ``torch.cuda.Event``."""

    def synchronize(self) -> None:
        """See ``torch.cuda.Event``."""

    def elapsed_time(self, other: Event) -> float:
        """See ``torch.cuda.Event``."""
        return 3.0


def test_a_device_is_timed_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "synchronize", chosen.append)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(gpu_bench, "CudaAccelerator", lambda device: RecordedHost())
    bench = gpu_bench.cuda_bench()
    calls: list[int] = []
    assert bench.timed(lambda: calls.append(1), 2) == pytest.approx(1.5e-3)
    assert bench.graph_arm([lambda: calls.append(1)] * 3)() == pytest.approx(1e-3 / 3)
    assert len(calls) == 2 + 3
    assert set(chosen) == {torch.device("cuda", 0)}
    assert bench.rounds >= 5
    assert bench.sizes is gpu_bench.FULL


def test_without_its_tool_the_driver_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.driver_version().startswith("unknown: ")


def test_a_fused_pass_that_is_refused_is_measured_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_model, "fuse", lambda *_: None)
    served = gpu_model.serve(gpu.smoke_bench(), own=False)
    assert (served.way, served.accepted, served.agrees) == ("FusedPass", False, True)


class Repeating(RecordedHost):
    """Does a recorded step again by running it: what Triton's interpreter does cannot be recorded as torch operations."""

    def record(self, body: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """See :class:`RecordedHost`."""
        return lambda: body() and None, body()


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
def test_kernels_of_triton(start: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same calls to the kernels that a device runs, in the interpreter."""
    bench = replace(gpu.smoke_bench(), kernels=triton_kernels())
    monkeypatch.setattr(gpu, "smoke_bench", lambda: bench)
    monkeypatch.setattr(gpu_bench, "RecordedHost", Repeating)
    monkeypatch.setattr(gpu, "Budget", lambda report, name, seconds: Budget(report, name, 100 * seconds))
    line = smoke(start, MODEL_FREE, tmp_path)
    assert line["failed"] == line["left_out"] == []
    assert line["kernels"] == "kernels.triton.attention"
