"""``inferd cluster status``, beside a Ray that says something."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferd_runtime.cli import cluster as command

SAID = {"inferd-replicas": {"status": "DEPLOYING", "replicas": {"STARTING": 2}, "message": "soon"}}


@pytest.mark.parametrize("as_json", [False, True])
def test_a_front_that_does_not_answer_hides_nothing_that_ray_says(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_ray: Any = SimpleNamespace(cluster_status=lambda settings: SAID)
    monkeypatch.setattr(command, "_on_ray", lambda: on_ray)
    nobody = "http://127.0.0.1:1"
    (tmp_path / "server.json").write_text(json.dumps({"url": nobody}))
    assert command.cluster(["status", f"--state-dir={tmp_path}", *(["--json"] if as_json else [])]) == 0
    shown = capsys.readouterr().out
    assert nobody in shown
    if as_json:
        found = json.loads(shown)
        assert (found["applications"], found["replicas"]) == (SAID, [])
    else:
        assert "inferd-replicas: DEPLOYING soon" in shown
