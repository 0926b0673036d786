"""The layers of the process that fetches packages: it reads what pip may need, and writes to one folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Access, Launch
from inferd_runtime.isolation.report import layers

STANDS = next(layer.active for layer in layers(ChildKind.INSTALLER) if layer.name == "landlock")
SCRIPT = """
import subprocess, sys
child.seal()
open(sys.argv[1]).read()
for path in sys.argv[2:]:
    open(path, "w").close()
subprocess.run([sys.executable, "-c", "import sys; open(sys.argv[1], 'a')", sys.argv[1]], stdout=subprocess.DEVNULL)
open(sys.argv[1], "a")
"""


@pytest.mark.skipif(not STANDS, reason="this system has no Landlock")
def test_what_fetches_packages_writes_to_its_folder_alone(tmp_path: Path) -> None:
    """pip unpacked a package's archive through a link, over any file of the server's user."""
    script, outside, folder = tmp_path / "script.py", tmp_path / "outside", tmp_path / "folder"
    script.write_text(SCRIPT)
    outside.write_text("kept")
    folder.mkdir()
    arguments = (str(outside), str(folder / "new"), "/dev/null")
    launch = Launch(str(script), ChildKind.INSTALLER, arguments, access=Access(write=(str(folder),)))
    done = subprocess.run(
        launch.command, input=launch.document(), env=launch.environment, capture_output=True, timeout=60
    )
    assert (folder / "new").exists()
    assert done.stderr.decode().count(f"PermissionError: [Errno 13] Permission denied: '{outside}'") == 2, done.stderr
