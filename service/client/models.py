"""Models: uploaded, or made of new weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from service.client.connection import Noun, id_of
from service.client.driving import Call, Each
from service.client.external_data import external_files
from service.client.nouns import NounCalls, told_of
from service.client.steps import Items, Steps, work
from service.client.uploads import UploadCalls, UploadProgress
from service.client.validation import ValidationCalls
from service.contracts.errors import InvalidRequestError
from service.models.schemas import ModelOut, is_main
from service.resources import ResourceStatus


class ModelCalls(NounCalls, UploadCalls, ValidationCalls):
    """Calls of ``/v1/models``."""

    @Call
    def push_model(
        self,
        path: Path | str,
        *external: Path | str,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
        progress: UploadProgress | None = None,
    ) -> Steps[ModelOut]:
        """Upload a model: its .onnx file with the files of its external data, or one .pt2 file where they are allowed.

        The model is being validated when this returns: see ``wait_ready``; ``submit`` waits for it by itself.

        Args:
            path: the model.
            external: the files of its external data. Default: those that the model names, which lie beside it.
            name: of the model; default: that of the file.
            tags: to find it by.
            description: for people.
            progress: as for ``upload_file``.

        Raises:
            InvalidRequestError: not exactly one of the files ends in .onnx.
            ExternalDataError: external data is missing, or lies elsewhere than beside the model.
        """
        paths = [Path(path), *map(Path, external)]
        form = "pt2" if [path.suffix for path in paths] == [".pt2"] else "onnx"
        main = [path for path in paths if form == "pt2" or is_main(path.name)]
        if len(main) != 1:
            raise InvalidRequestError(
                f"Exactly one file must end in .onnx, found {len(main)}.", hint="All others are its external data."
            )
        if form == "onnx" and not external:
            paths += yield from work(lambda: external_files(main[0]))
        files = []
        for file in paths:
            upload = yield from self._upload(file, "model", progress)
            files.append({"upload_id": upload.id, "path": file.name})
        body = {"name": name or main[0].stem, "files": files, "format": form, **told_of(tags, description)}
        return ModelOut.model_validate((yield from self._create("/v1/models", body)))

    @Call
    def create_model_version(
        self,
        skeleton: Noun | str,
        state_path: Path | str,
        *,
        name: str | None = None,
        progress: UploadProgress | None = None,
    ) -> Steps[ModelOut]:
        """Upload new weights for the graph of a ready model; the model of both is being validated when this returns.

        Args:
            skeleton: the model, or its id.
            state_path: what ``safetensors.torch.save_file(module.state_dict(), path)`` wrote.
            name: of the new model; default: that of the skeleton, whose next version it is.
            progress: as for ``upload_file``.
        """
        path = Path(state_path)
        upload = yield from self._upload(path, "model", progress)
        body = {
            "name": name,
            "format": "safetensors",
            "skeleton_model_id": id_of(skeleton),
            "files": [{"upload_id": upload.id, "path": f"{path.stem}.safetensors"}],
        }
        return ModelOut.model_validate((yield from self._create("/v1/models", body)))

    @Call
    def model(self, model: Noun | str) -> Steps[ModelOut]:
        """The model as it is now, by its id or a reference such as ``NAME@prod``."""
        path = yield from self._at("model", id_of(model))
        return ModelOut.model_validate((yield from self._json("GET", path)))

    @Each
    def models(
        self,
        *,
        name: str | None = None,
        status: ResourceStatus | None = None,
        sha256: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Items[ModelOut, None]:
        """All models, newest first, read page by page.

        Args:
            name: the versions of this name alone.
            status: only those in this status.
            sha256: those whose main file this is.
            tags: those that have all of these.
            limit: at most so many.
        """
        yield from self._list("/v1/models", ModelOut, limit, name=name, status=status, sha256=sha256, tags=tags)
