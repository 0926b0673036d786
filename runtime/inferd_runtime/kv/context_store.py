"""Where several servers find the contexts that one of them saved: a URL of fsspec, with options of its backend."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from inferd.protocol import InvalidRequest

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""By protocol what of ours brings its package."""


@dataclass(frozen=True)
class ContextStore:
    """Where saved contexts lie that several servers share.

    Fields:
        url: of fsspec, such as s3://bucket/folder; "": a folder of this machine is used instead.
        options: arguments of the store's backend as JSON, which may hold secrets; "" for none.
        seconds: how long a request may take.
    """

    url: str = ""
    options: str = ""
    seconds: float = 60.0

    @property
    def folder(self) -> str:
        """The folder of a store that is a file system's, else ""."""
        parts = urlsplit(self.url)
        return parts.path if parts.scheme in ("file", "local") else ""

    def check(self) -> None:
        """Raise InvalidRequest if the URL is none, has secrets in it, or needs a package that is not installed."""
        parts = urlsplit(self.url)
        if not parts.scheme or "://" not in self.url or "::" in self.url:
            raise InvalidRequest(f"a store of saved contexts is one URL, such as s3://bucket/folder, not {self.url!r}")
        if "@" in parts.netloc or parts.query:
            raise InvalidRequest("secrets do not belong into a URL, which others can see: --context-store-options")
        _backend(parts.scheme)

    def files(self) -> tuple[Any, str]:
        """Return fsspec's file system, and the path in it. Raises InvalidRequest for what the backend does not take."""
        self.check()
        backend = _backend(urlsplit(self.url).scheme)
        try:
            options = json.loads(self.options or "{}")
            found = backend(**{**options, "use_listings_cache": False, "skip_instance_cache": True})
        except (TypeError, ValueError, OSError) as error:
            raise InvalidRequest(f"the store of saved contexts takes no such options: {error}") from None
        return found, str(backend._strip_protocol(self.url))


def _backend(protocol: str) -> Any:
    """Return fsspec's class for a protocol. Raises InvalidRequest that says what to install."""
    try:
        import fsspec
    except ImportError:
        raise InvalidRequest("a store of saved contexts needs fsspec: pip install 'inferd[cluster]'") from None
    try:
        return fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        extra = EXTRAS.get(protocol)
        how = f"pip install 'inferd[{extra}]'" if extra else str(error)
        raise InvalidRequest(f"a store of saved contexts at {protocol}:// needs a package more: {how}") from None
    except ValueError as error:
        raise InvalidRequest(f"a store of saved contexts: {error}") from None
