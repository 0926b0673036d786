"""One run of a program, from its launch to its report, in a thread of its own."""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
from inferd.protocol import Cancelled, ErrorInfo, InferdError, InternalError, LimitExceeded, ProgramError, Usage

from inferd_runtime.sandbox.calls import GuestCalls
from inferd_runtime.sandbox.engine_settings import MIB, WASM_STACK_BYTES
from inferd_runtime.sandbox.messages import Bundle, Finished, FromWorker, Launch, RunUsage, Started
from inferd_runtime.sandbox.meter import exceeded
from inferd_runtime.sandbox.wasm import Guest, GuestTrap, LoadedRunner
from inferd_runtime.session.link import EngineLink

CLOSE_SECONDS = 2.0
