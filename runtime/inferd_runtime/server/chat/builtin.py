"""The built-in chat program's file, and its ``main``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import inferd_runtime
from inferd.protocol import InternalError
from inferd_runtime.server.chat.direct import ChatMain

INSTALLED = Path(inferd_runtime.__file__).parent / "inferlets" / "chat" / "main.py"
CHECKED_OUT = Path(inferd_runtime.__file__).parents[2] / "inferlets" / "chat" / "main.py"


def chat_program_file() -> Path:
    """Return the program's file: in an installed package, or in the source tree."""
    return INSTALLED if INSTALLED.is_file() else CHECKED_OUT


def builtin_main() -> ChatMain:
    """Return the program's ``main``. Raises InternalError if it is not where it belongs."""
    path = chat_program_file()
    spec = importlib.util.spec_from_file_location("inferd_builtin_chat", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InternalError(f"the built-in chat program is missing: {path}")
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    main: ChatMain = module.main
    return main
