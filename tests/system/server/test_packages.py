"""Programs with dependencies and files, from the upload to their end in a real sandbox."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from wheel_index import make_wheel, use_index

from inferd_runtime.server.gateway.app import open_gateway
from inferd_runtime.server.packages.guest_modules import GUEST_MODULES
from inferd_runtime.server.packages.requirements import GUEST_PYTHON
from inferd_runtime.server.supervisor.commands import Commands, default_commands

from .conftest import ANN, fake_commands, settings_in

SOURCE = """
# /// script
# dependencies = ["wording>=1"]
# ///
import importlib.resources
import pkgutil
import platform
import sys
import wording
from inferd import files

async def main() -> list:
    greeting = pkgutil.get_data("wording", "part/greeting.txt").decode()
    folder = importlib.resources.files("wording")
    assert sorted(one.name for one in folder.iterdir()) == ["__init__.py", "part"]
    with importlib.resources.as_file(folder / "part/greeting.txt") as path:  # as certifi does, and with it requests
        assert open(path).read() == greeting
    return [wording.said(greeting, files.read_text("name.txt")), ".".join(platform.python_version_tuple()[:2]),
            sorted(sys.stdlib_module_names)]
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index")


@pytest.fixture(scope="module")
async def client(index: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with a real sandbox, and an engine that nobody asks for anything."""
    with pytest.MonkeyPatch.context() as patch:
        use_index(index, patch)
        settings = settings_in(tmp_path_factory.mktemp("server"))
        commands = Commands(fake_commands().engine, default_commands(settings).worker)
        headers = {"Authorization": f"Bearer {ANN}"}
        async with open_gateway(settings, commands) as gateway:
            await gateway.runtime.wait_ready()
            async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=60) as client:
                yield client


async def result_of(client: httpx.AsyncClient, program: str) -> Any:
    run = (await client.post("/v1/runs", json={"program": program})).json()
    with anyio.fail_after(60):
        await client.get(f"/v1/runs/{run['id']}/events")  # until it is over
    return (await client.get(f"/v1/runs/{run['id']}")).json()


async def upload(client: httpx.AsyncClient, dependency: str = "wording>=1", **changes: Any) -> httpx.Response:
    body = {"files": {"main.py": SOURCE.replace("wording>=1", dependency)}, "name": "p", **changes}
    return await client.post("/v1/programs", json=body)


async def test_a_program_runs_with_its_packages_and_files(client: httpx.AsyncClient, index: Path) -> None:
    code = {"wording/__init__.py": "def said(*words): return ' '.join(words)", "wording/part/greeting.txt": "Hello"}
    make_wheel(index, "wording", code, version="1.2")
    data = {"name.txt": b64encode(b"Ann").decode()}
    uploaded = (await upload(client, data=data)).json()
    assert [(one["name"], one["version"], len(one["sha256"])) for one in uploaded["packages"]] == [
        ("wording", "1.2", 64)
    ]
    ended = await result_of(client, uploaded["id"])
    assert ended["result"] == ["Hello Ann", GUEST_PYTHON, sorted(GUEST_MODULES)], ended["error"]
    again = (await upload(client, data=data)).json()
    assert (again["id"], again["created"]) == (uploaded["id"], False)


WITH_ANYIO = """
# /// script
# dependencies = ["anyio"]
# ///
import anyio

async def send(number, stream):
    async with stream:
        await stream.send(number)

async def main() -> list:
    seen = []
    sending, receiving = anyio.create_memory_object_stream(2)
    async with anyio.create_task_group() as tasks, receiving:
        for number in range(3):
            tasks.start_soon(send, number, sending.clone())
        sending.close()
        async for number in receiving:
            seen.append(number)
    with anyio.move_on_after(0.01) as scope:
        await anyio.sleep_forever()
    return [sorted(seen), scope.cancelled_caught, await anyio.to_thread.run_sync(int, "7"), await anyio.Path("main.py").exists()]
"""


def files_of_anyio() -> dict[str, str]:
    """Return the files of anyio and of what it imports, as a wheel holds them."""
    top = Path(anyio.__path__[0]).parent
    return {
        str(path.relative_to(top)): path.read_text()
        for path in (top / "typing_extensions.py", *top.glob("anyio/**/*.py"))
    }


async def test_anyio_works_in_the_sandbox(client: httpx.AsyncClient, index: Path) -> None:
    make_wheel(index, "anyio", files_of_anyio())
    uploaded = await client.post("/v1/programs", json={"files": {"main.py": WITH_ANYIO}, "name": "anyio"})
    ended = await result_of(client, uploaded.json()["id"])
    assert ended["result"] == [[0, 1, 2], True, 7, True], ended["error"]


@pytest.mark.parametrize(
    ("dependency", "said"),
    [("fast", "compiled code"), ("evil", "leads out"), ("nowhere", "nothing that fits"), ("p @ file:///x", "URL")],
)
async def test_what_cannot_run_is_refused_at_upload(
    client: httpx.AsyncClient, index: Path, dependency: str, said: str
) -> None:
    make_wheel(index, "fast", {"fast.so": b"\x7fELF"}, tag="cp314-cp314-manylinux_2_17_x86_64")
    make_wheel(index, "evil", {"../../evil.py": ""})
    refused = await upload(client, dependency)
    assert refused.status_code == 400, refused.text
    assert said in refused.json()["error"]["message"]


async def test_an_upload_cannot_bring_packages_itself(client: httpx.AsyncClient) -> None:
    refused = await upload(client, "inferd", packages={"os.py": ""}, lock=[])
    assert refused.status_code == 400
    assert "brings no packages" in refused.json()["error"]["message"]


def test_this_python_is_older_than_the_sandboxs_or_the_same() -> None:
    assert sys.version_info[:2] <= tuple(map(int, GUEST_PYTHON.split(".")))
