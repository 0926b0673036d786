"""What of this process's environment its children get: an allow-list for each kind of child, and nothing else.

Little of it is in the environment that a child is started with, which other processes of the same user can read: the rest
comes with its order, on standard input.
"""

from __future__ import annotations

from collections.abc import Mapping

from inferd_runtime.isolation.kinds import ChildKind

AT_START = ("LANG", "LC_", "LD_LIBRARY_PATH", "TZ")
"""What the loader and the C library read before Python runs."""
LANGUAGE = ("LANG", "LC_", "TZ")
FOLDERS = ("HOME", "INFERD_CACHE_DIR", "PATH", "TMPDIR", "XDG_CACHE_HOME")
NETWORK = (
    "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "all_proxy", "http_proxy", "https_proxy", "no_proxy",
    "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_",
)  # fmt: skip
LIBRARIES = (
    "CC", "CUDA_", "GLOO_", "GOMP_", "HF_", "HUGGING_FACE_", "HUGGINGFACE_", "KMP_", "LD_LIBRARY_PATH", "MKL_", "NCCL_",
    "NUMEXPR_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTORCH_", "RAYON_", "SAFETENSORS_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_",
    "TRITON_", "USER",
)  # fmt: skip
ALLOWED: Mapping[ChildKind, tuple[str, ...]] = {
    ChildKind.WORKER: LANGUAGE,
    ChildKind.PARSER: LANGUAGE,
    ChildKind.COMPILER: LANGUAGE,
    ChildKind.MODEL: LANGUAGE + FOLDERS + NETWORK + LIBRARIES,
    ChildKind.BUILDER: LANGUAGE + FOLDERS,
    ChildKind.EGRESS: LANGUAGE,
    ChildKind.TOOL_SERVER: (*LANGUAGE, "PATH"),
    ChildKind.INSTALLER: LANGUAGE + FOLDERS + NETWORK + ("NETRC", "PIP_", "XDG_CONFIG_"),
}
"""Beginnings of names. Hub tokens and proxies with passwords are for the processes that load models, which download them."""
UNLESS_SET: Mapping[ChildKind, Mapping[str, str]] = {ChildKind.MODEL: {"GOMP_SPINCOUNT": "2000"}}
"""Of the threads that share a product, those that are done spin so many times, some 50 us, before they sleep. libgomp's 300,000
keep a processor from the very thread that they wait for where others use it, too: two threads beside one busy process made 2
tokens a second, and make 42 (docs/benchmarks.md). On a quiet machine 1,000 are as fast, and 500 not any more.
"""
FIXED: Mapping[ChildKind, Mapping[str, str]] = {
    ChildKind.COMPILER: {"OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
}


ALLOCATOR: Mapping[ChildKind, Mapping[str, str]] = {
    ChildKind.WORKER: {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "524288", "MALLOC_TRIM_THRESHOLD_": "4194304"}
}
"""glibc's own, read before Python runs. Large values of strangers then go back to the system when they are freed: without, an
arena for each of a worker's threads kept some of each, and the largest freed one raised what counts as large."""


def start_environment(kind: ChildKind, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that a child is started with: no secret is in it."""
    return _only(_only(environment, ALLOWED[kind]), AT_START) | dict(ALLOCATOR.get(kind, {}))


def order_environment(kind: ChildKind, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the child adds to its environment once it runs."""
    return dict(UNLESS_SET.get(kind, {})) | _only(environment, ALLOWED[kind]) | dict(FIXED.get(kind, {}))


def _only(environment: Mapping[str, str], beginnings: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(beginnings)}
