"""Where a server may listen, with which certificate, and that it is alone on its folders."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

import pytest

from inferd.protocol import InvalidRequest, Unavailable
from inferd_runtime.server.gateway.listening import check_exposure, is_loopback, listen, tls_context, url_of
from inferd_runtime.server.processes.folder_lock import locked_folders
from inferd_runtime.settings.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost", "::1%lo"])
def test_this_machine_alone_needs_no_tls(host: str) -> None:
    assert is_loopback(host)
    check_exposure(Settings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "localhost.example.org", "10.0.0.1"])
def test_a_network_needs_tls_or_the_word_insecure(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(InvalidRequest, match="--insecure"):
        check_exposure(Settings(host=host))
    check_exposure(Settings(host=host, insecure=True))
    check_exposure(Settings(host=host, tls_cert=Path("cert.pem")))


def test_a_certificate_that_does_not_serve_is_refused_by_name(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text("no certificate")
    key.touch(0o600)
    for wrong in ({"tls_cert": cert}, {"tls_key": key}):
        with pytest.raises(InvalidRequest, match="belong together"):
            tls_context(Settings(**wrong))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"cert\.pem.*cannot be used"):
        tls_context(Settings(tls_cert=cert, tls_key=key))
    key.chmod(0o640)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        tls_context(Settings(tls_cert=cert, tls_key=key))
    assert tls_context(Settings()) is None


def test_the_listener_says_that_it_is_tcp() -> None:
    """Else asyncio does not set TCP_NODELAY on what it accepts."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        port = listener.getsockname()[1]
        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port)


def test_an_address_is_what_a_client_on_this_machine_uses() -> None:
    assert url_of("0.0.0.0", 1, tls=False) == "http://127.0.0.1:1"
    assert url_of("::", 1, tls=True) == "https://[::1]:1"


def test_a_second_server_on_the_same_folders_is_refused_by_name(tmp_path: Path) -> None:
    state, data = tmp_path / "state", tmp_path / "data"
    with locked_folders(state, data, state):
        for folders in ((state, tmp_path / "other"), (tmp_path / "other", data)):
            with pytest.raises(Unavailable, match="a server runs on the folder"), locked_folders(*folders):
                pass
    with locked_folders(state, data):
        pass


def test_a_folder_on_a_file_system_without_locks_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(Unavailable, match=f"{tmp_path}.*needs locks"), locked_folders(tmp_path):
        raise AssertionError
