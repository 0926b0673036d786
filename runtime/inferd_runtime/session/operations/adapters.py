"""``adapter.*``: loading LoRA adapters while the model is served, listing and dropping them."""

from __future__ import annotations

from inferd import protocol as p
from inferd_runtime.engine.adapters import LoadedAdapter, ReadAdapter
from inferd_runtime.models.lora.files import AdapterFiles
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.state import Call, SessionState
from inferd_runtime.session.texts import answer_with


def upload(state: SessionState, call: Call) -> None:
    """Store a piece of a file. A session's uploads are private to it and dropped when it closes."""
    request: p.UploadAdapter = call.request
    uploads = state.model(request.model).adapters.uploads
    number = request.upload or uploads.begin(state.tenant)
    if not request.upload:
        state.uploads.add((uploads, number))
    _check_upload(state, request.model, number)
    call.respond(p.Upload(number, uploads.add(number, request.data)))


def load(state: SessionState, call: Call) -> None:
    """Load an uploaded adapter for the session's tenant. It is read beside the step loop."""
    request: p.LoadAdapter = call.request
    model = state.model(request.model)
    _check_upload(state, request.model, request.upload)
    file = model.adapters.uploads.take(request.upload)
    reader = model.adapters.reader(state.tenant)

    def read() -> ReadAdapter:
        return reader(AdapterFiles(request.config.encode(), file.data))

    def reply(adapter: ReadAdapter) -> p.AdapterInfo:
        return _info(model, model.adapters.load(state.tenant, request.name, adapter))

    answer_with(state, call, len(request.config) + len(file.data), read, reply)


def list_adapters(state: SessionState, call: Call) -> None:
    """Answer with the server's adapters and the tenant's."""
    request: p.ListAdapters = call.request
    model = state.model(request.model)
    call.respond(p.Adapters([_info(model, adapter) for adapter in model.adapters.list(state.tenant)]))


def drop(state: SessionState, call: Call) -> None:
    """Unload one of the tenant's adapters."""
    request: p.DropAdapter = call.request
    state.model(request.model).adapters.drop(state.tenant, request.name)
    call.respond(p.Done())


def _check_upload(state: SessionState, model: str, number: int) -> None:
    uploads = state.model(model).adapters.uploads
    if (uploads, number) not in state.uploads or not uploads.knows(number):
        raise p.NotFound(f"upload {number} does not exist or was used")


def _info(model: ServedModel, adapter: LoadedAdapter) -> p.AdapterInfo:
    size = adapter.size
    return p.AdapterInfo(adapter.name, model.info.name, size.rank, size.bytes, adapter.tenant is None)


HANDLERS = {p.UploadAdapter: upload, p.LoadAdapter: load, p.ListAdapters: list_adapters, p.DropAdapter: drop}
