"""From requirements to packages, over a package index in a folder."""

from __future__ import annotations

import io
import os
import shutil
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread, get_ident
from typing import Any
from unittest.mock import ANY

import anyio
import anyio.to_thread
import pytest
from waiting import until
from wheel_index import make_wheel, use_index

from inferd.protocol import Forbidden, InvalidRequest, LimitExceeded, Unavailable
from inferd_runtime.file_cache import CacheEntry
from inferd_runtime.isolation.order import Launch
from inferd_runtime.server.packages.finder import PackageFinder
from inferd_runtime.server.packages.finder_child import _environment, _required, _unpacked
from inferd_runtime.server.packages.messages import Packages, Question
from inferd_runtime.server.packages.pip_index import PackageIndex
from inferd_runtime.server.packages.requirements import checked_requirements
from inferd_runtime.server.processes.child_process import ChildProcess
from inferd_runtime.server.processes.priority import BEHIND, LAST

NATIVE = "cp314-cp314-manylinux_2_17_x86_64"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    use_index(folder, monkeypatch)
    return folder


@pytest.fixture
def finder(tmp_path: Path) -> PackageFinder:
    return PackageFinder(tmp_path / "kept", allowed=True)


@contextmanager
def silent_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have pip ask an index that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{listening.getsockname()[1]}/")
        yield


def make_source(path: Path, runs: str, link: Path) -> None:
    """Write a source distribution that runs something when it is built, and writes that through a link when it is unpacked."""
    files = {
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'b'\nbackend-path = ['.']\n",
        "b.py": runs,
    }
    with tarfile.open(path, "w:gz") as archive:
        top = path.name.removesuffix(".tar.gz")
        away = tarfile.TarInfo(f"{top}/away")
        away.type, away.linkname = tarfile.SYMTYPE, str(link)
        archive.addfile(away)
        for name, text in {**files, "away/b.py": runs}.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


async def found(finder: PackageFinder, *dependencies: str) -> Packages:
    return await finder.find(checked_requirements(dependencies))


async def test_packages_come_with_what_they_need_in_the_sandbox(index: Path, finder: PackageFinder) -> None:
    make_wheel(
        index, "top", {"top.py": "import low"},
        requires=["low>=1; sys_platform == 'wasi'", "other; sys_platform == 'win32'", "some; extra == 'more'"],
    )  # fmt: skip
    make_wheel(index, "low", {"low.py": ""}, version="1.5")
    make_wheel(index, "low", {"low.py": "old"}, version="0.5")
    make_wheel(index, "some", {"some.py": ""})
    packages = await found(finder, "top")
    assert {(one.name, one.version) for one in packages.lock} == {("top", "1.0"), ("low", "1.5")}
    assert packages.files["low.py"] == b""
    with_extra = await found(finder, "top[more]")
    assert {one.name for one in with_extra.lock} == {"top", "low", "some"}


async def test_an_extra_that_names_others_of_its_package_brings_nothing_where_nobody_asks_for_it(
    index: Path, finder: PackageFinder
) -> None:
    """mpmath brought numpy and matplotlib, which are of its extra "tests": its extra "develop" names that."""
    make_wheel(
        index, "top", {"top.py": ""},
        requires=["some; extra == 'tests'", "top[tests]; extra == 'all'", "other; extra == 'all'"],
    )  # fmt: skip
    for name in ("some", "other"):
        make_wheel(index, name, {f"{name}.py": ""})
    assert [one.name for one in (await found(finder, "top")).lock] == ["top"]
    assert {one.name for one in (await found(finder, "top[tests]")).lock} == {"top", "some"}
    assert {one.name for one in (await found(finder, "top[all]")).lock} == {"top", "some", "other"}


async def test_a_search_that_the_system_ends_is_no_fault_of_the_upload(
    index: Path, finder: PackageFinder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed = tmp_path / "killed.py"
    killed.write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setattr("inferd_runtime.server.packages.pip_index.PIP", str(killed))
    with pytest.raises(Unavailable, match="was ended by SIGKILL"):
        PackageIndex("3.14", tmp_path).fetch(["p"])


async def test_what_was_found_once_needs_no_index_again(index: Path, finder: PackageFinder) -> None:
    wheel = make_wheel(index, "p", {"p.py": ""})
    first = await found(finder, "p>=1")
    wheel.unlink()
    assert await found(finder, "P >= 1") == first
    with pytest.raises(InvalidRequest, match="nothing that fits"):
        await found(finder, "p>=0.5")


async def test_answers_that_another_search_drops_meanwhile_are_looked_up_anew(
    index: Path, finder: PackageFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had filled the folder with answers made others' uploads fail with an internal error."""
    make_wheel(index, "p", {"p.py": ""})
    first = await found(finder, "p")
    touch = CacheEntry.touch

    def dropped(entry: CacheEntry) -> None:
        entry.path.unlink()
        touch(entry)

    monkeypatch.setattr(CacheEntry, "touch", dropped)
    assert await found(finder, "p") == first
    stat = Path.stat

    def gone(path: Path, **options: Any) -> os.stat_result:
        if path.suffix == ".json":
            raise FileNotFoundError(path)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", gone)
    assert await found(finder, "p") == first


async def test_the_files_of_a_search_are_removed_beside_the_event_loop(
    index: Path, finder: PackageFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package can have thousands of dependencies: removing their wheels held all requests up."""
    threads: list[int] = []
    removed = shutil.rmtree

    def noted(path: Any, *arguments: Any, **options: Any) -> None:
        threads.append(get_ident())
        removed(path, *arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", noted)
    make_wheel(index, "p", {"p.py": ""})
    await found(finder, "p")
    assert threads
    assert get_ident() not in threads


async def test_what_was_found_before_does_not_wait_for_what_others_look_for(index: Path, finder: PackageFinder) -> None:
    make_wheel(index, "p", {"p.py": ""})
    first = await found(finder, "p")
    for tenant in ("mallory", "trudy"):
        finder._places.acquire_on_behalf_of_nowait(tenant)
    with anyio.fail_after(5):
        assert await found(finder, "p") == first


async def test_a_native_package_is_refused_by_name_and_one_that_runs_without_is_taken(
    index: Path, finder: PackageFinder
) -> None:
    make_wheel(index, "numpy", {"numpy/core.so": b"\x7fELF"}, tag=NATIVE)
    make_wheel(index, "uses", {"uses.py": ""}, requires=["numpy"])
    with pytest.raises(InvalidRequest, match=r"compiled code.*numpy 1.0.*lists"):
        await found(finder, "uses")
    make_wheel(index, "MarkupSafe", {"markupsafe/__init__.py": "", "markupsafe/fast.so": b"\x7fELF"}, tag=NATIVE)
    make_wheel(index, "both", {"both.py": "pure"})
    make_wheel(index, "both", {"both.py": "fast", "both.so": b"\x7fELF"}, tag=NATIVE)
    packages = await found(finder, "markupsafe", "both")
    assert "markupsafe/fast.so" not in packages.files
    assert packages.files["both.py"] == b"pure"


async def test_no_code_of_a_package_runs_and_a_hostile_wheel_is_refused(index: Path, finder: PackageFinder) -> None:
    ran = index / "ran"
    (index / "setup.py").write_text(f"open({str(ran)!r}, 'w')")
    make_wheel(index, "evil", {"../evil.py": "", "evil.pth": f"import os; open({str(ran)!r}, 'w')"})
    with pytest.raises(InvalidRequest, match="leads out"):
        await found(finder, "evil")
    assert not ran.exists()


@pytest.mark.parametrize("marker", ["", " ; sys_platform == 'wasi'"], ids=["here too", "in the sandbox alone"])
async def test_what_a_package_requires_by_a_url_is_neither_unpacked_nor_built(
    index: Path, finder: PackageFinder, tmp_path: Path, marker: str
) -> None:
    """pip unpacked it, through links as well: a package wrote where it liked, and had the server ask where it liked."""
    ran, source = tmp_path / "ran", tmp_path / "evil-1.0.tar.gz"
    make_source(source, f"open({str(ran)!r}, 'w').close()\n", link=tmp_path)
    make_wheel(index, "top", {"top.py": ""}, requires=[f"evil @ {source.as_uri()}{marker}"])
    with pytest.raises(InvalidRequest, match="names a URL" if marker else "required-by-URL"):
        await found(finder, "top")
    assert not ran.exists()
    assert not (tmp_path / "b.py").exists()


async def test_a_wheel_of_the_server_is_not_taken_by_its_path(
    index: Path, finder: PackageFinder, tmp_path: Path
) -> None:
    private = make_wheel(tmp_path, "private", {"private.py": "KEY = 1"})
    up = "../" * 20
    for at, requires in enumerate(
        [f"private @ {private.as_uri()}", f"private==={up}{private} ; sys_platform == 'wasi'"]
    ):
        make_wheel(index, f"top{at}", {"top.py": ""}, requires=[requires])
        with pytest.raises(InvalidRequest, match=r"required-by-URL|==="):
            await found(finder, f"top{at}")


@pytest.mark.parametrize("requires", [["low" + "x" * 200_000], [f"low{number}" for number in range(500)]])
async def test_packages_that_require_no_end_of_others_are_refused(
    index: Path, finder: PackageFinder, requires: list[str]
) -> None:
    make_wheel(index, "top", {"top.py": ""}, requires=[f"{one}; sys_platform == 'wasi'" for one in requires])
    with pytest.raises((InvalidRequest, LimitExceeded), match="it may"):
        await found(finder, "top")


async def test_searches_that_take_long_end_once_another_tenant_waits(
    finder: PackageFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferd_runtime.server.packages.finder.SHARED_SECONDS", 0.1)
    ended: list[str] = []

    async def search(package: str) -> None:
        with pytest.raises(LimitExceeded) as caught:
            await finder.find((package,), tenant=package)
        ended.append(str(caught.value.detail["limit"]))

    with silent_index(monkeypatch), anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for package in ("a", "b"):
                tasks.start_soon(search, package)
            await until(lambda: len(finder._searches) == 2)
            assert not ended
            tasks.start_soon(search, "c")
            await until(lambda: len(ended) == 2)
            tasks.cancel_scope.cancel()
    assert ended == ["packages_s"] * 2


async def test_what_breaks_pip_does_not_tell_of_the_operators_folders(index: Path, finder: PackageFinder) -> None:
    marker = "(" * 2000 + "sys_platform == 'wasi'" + ")" * 2000
    make_wheel(index, "deep", {"deep.py": ""}, requires=[f"other; {marker}"])
    with pytest.raises(InvalidRequest, match="RecursionError") as refused:
        await found(finder, "deep")
    assert "/" not in refused.value.message


class Endless(SimpleHTTPRequestHandler):
    """An index whose wheels have no end."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        super().copyfile(source, outputfile)
        with suppress(OSError):
            while self.path.endswith(".whl"):
                outputfile.write(bytes(1 << 16))

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Content-Length":
            super().send_header(keyword, value)

    def log_message(self, *_: object) -> None:
        pass


async def test_the_files_of_a_search_are_bounded_and_none_stays(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's own temporary files included: those of one that was killed stayed where all have theirs."""
    (index / "p").mkdir()
    make_wheel(index / "p", "p", {"p.py": "", "data.bin": "x" * 1000})
    monkeypatch.delenv("PIP_NO_INDEX")
    folder = tmp_path / "search"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Endless, directory=str(index))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(LimitExceeded) as refused:
            await anyio.to_thread.run_sync(lambda: PackageIndex("3.14", folder, 1 << 20).fetch(["p"]))
        server.shutdown()
    assert refused.value.detail == {"limit": "packages_disk_bytes", "value": 1 << 20, "raise_with": ANY}
    assert [path for path in folder.rglob("*") if path.is_file()]  # in it, and nowhere else: it goes with the search


async def test_a_search_steps_behind_and_one_that_is_given_up_ends_with_its_processes(
    finder: PackageFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ChildProcess] = []
    folders: list[Path] = []
    start = ChildProcess.start

    async def noted(name: str, launch: Launch) -> ChildProcess:
        assert isinstance(launch.settings, Question)
        folders.append(Path(launch.settings.folder))
        started.append(await start(name, launch))
        return started[-1]

    monkeypatch.setattr(ChildProcess, "start", noted)
    with silent_index(monkeypatch), anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found, finder, "a")
            await until(lambda: folders and any(folders[0].rglob("tmp")))  # pip is about to run
            nice = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, started[0].pid)]
            tasks.cancel_scope.cancel()
    assert nice[1] == min(nice[0] + BEHIND, LAST)
    assert not started[0].alive
    assert not folders[0].exists()


class Cacheable(SimpleHTTPRequestHandler):
    """An index whose answers may be kept."""

    def end_headers(self) -> None:
        self.send_header("ETag", '"1"')
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


async def test_what_tenants_name_does_not_stay_in_pips_cache(
    index: Path, finder: PackageFinder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (index / "p").mkdir()
    make_wheel(index / "p", "p", {"p.py": ""})
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Cacheable, directory=str(index))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")  # pip keeps nothing of others that speak no TLS
        assert (await found(finder, "p")).files["p.py"] == b""
        server.shutdown()
    assert not (tmp_path / "cache").exists()


async def test_an_operator_can_allow_none(tmp_path: Path) -> None:
    with pytest.raises(Forbidden, match="setting packages"):
        await found(PackageFinder(tmp_path, allowed=False), "p")


@pytest.mark.parametrize(
    "requires",
    [["a b c"], ["low; python_version ~= 'x'"], ["low; nothing == 'x'"], ["low @ file:///etc/passwd ;"], ["("]],
)
def test_requirements_that_are_none_require_nothing(requires: list[str]) -> None:
    lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {"p-1.0.dist-info/METADATA": f"Name: p\n{lines}".encode(), "q.dist-info/METADATA": b"\xff\xfe: \x00"}
    assert list(_required(Packages(files, ()), ["p"], _environment("3.14"))) == []


def test_a_wheel_with_an_odd_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p-\u0661-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(InvalidRequest, match="odd name"):
        _unpacked(list(tmp_path.iterdir()))
