"""Models, which may be inspected, and datasets: uploaded, listed, shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from service.client.connection import Resource, id_of
from service.client.driving import Call, Each
from service.client.errors import JobFailedError
from service.client.resources import PushOptions, ResourceCalls, ResourceFilters, told_of
from service.client.steps import Items, Steps, work
from service.client.uploads import UploadCalls, UploadProgress, check_file, external_files
from service.contracts.dataset import PreprocessingSpec
from service.contracts.documents import Config, config_document
from service.contracts.errors import InvalidRequestError
from service.contracts.graph_view import Inspection
from service.datasets.schemas import DatasetOut
from service.inspections.schemas import InspectionOut
from service.models.schemas import ModelOut, is_main


class ModelCalls(ResourceCalls, UploadCalls):
    """Calls of ``/v1/models``, ``/v1/inspections`` and ``/v1/datasets``."""

    @Call
    def inspect(
        self,
        model: Resource | str,
        *,
        target: str | None = None,
        config: Config | None = None,
        timeout_seconds: float | None = None,
    ) -> Steps[Inspection]:
        """What a target would make of a ready model, node by node; ``target`` takes the place of the config's.

        Raises:
            JobFailedError: the model cannot be inspected; carries the reason.
            WaitTimeoutError: it takes longer than that.
        """
        params = {} if target is None else {"target": target}
        body = {"config": config_document(config)}
        # asked again for the same model and config, the same inspection is found
        answer = yield from self._json(
            "POST", f"/v1/models/{id_of(model)}/inspect", params=params, json=body, repeatable=True
        )
        path = InspectionOut.model_validate(answer).links.self

        found = yield from self._get_once(InspectionOut, path, lambda seen: seen.status != "running", timeout_seconds)
        if found.problem is not None:
            raise JobFailedError(found.problem)
        assert found.result is not None  # noqa: S101 - it has ended
        return found.result

    @Call
    def push_model(self, path: Path | str, *external: Path | str, **options: Unpack[PushOptions]) -> Steps[ModelOut]:
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
        check_file(main[0])
        if form == "onnx" and not external:
            paths += yield from work(lambda: external_files(main[0]))
        files = []
        for file in paths:
            upload = yield from self._upload(file, "model", options.get("progress"))
            files.append({"upload_id": upload.id, "path": file.name})
        named = options.get("name") or main[0].stem
        body = {"name": named, "files": files, "format": form, **told_of(options)}
        return ModelOut.model_validate((yield from self._create("/v1/models", body)))

    @Call
    def create_model_version(
        self,
        model: Resource | str,
        state_path: Path | str,
        *,
        name: str | None = None,
        progress: UploadProgress | None = None,
    ) -> Steps[ModelOut]:
        """Upload new weights for the graph of a ready model; the model of both is being validated when this returns.

        Args:
            model: the model, or its id.
            state_path: what ``safetensors.torch.save_file(module.state_dict(), path)`` wrote.
            name: of the new model; default: that of the model, whose next version it is.
            progress: as for ``upload_file``.
        """
        path = Path(state_path)
        upload = yield from self._upload(path, "model", progress)
        body = {
            "name": name,
            "format": "safetensors",
            "skeleton_model_id": id_of(model),
            "files": [{"upload_id": upload.id, "path": f"{path.stem}.safetensors"}],
        }
        return ModelOut.model_validate((yield from self._create("/v1/models", body)))

    @Call
    def model(self, model: Resource | str) -> Steps[ModelOut]:
        """The model as it is now, by its id or a reference such as ``NAME@prod``."""
        path = yield from self._at("model", id_of(model))
        return (yield from self._get(ModelOut, path))

    @Each
    def models(self, **filters: Unpack[ResourceFilters]) -> Items[ModelOut, None]:
        """All models, newest first, read page by page.

        Args:
            name: the versions of this name alone.
            status: only those in this status.
            sha256: those whose main file this is.
            tags: those that have all of these.
            limit: at most so many.
        """
        yield from self._list("/v1/models", ModelOut, filters)

    @Call
    def push_dataset(
        self,
        path: Path | str,
        preprocessing: PreprocessingSpec | Mapping[str, Any] | str | None = None,
        **options: Unpack[PushOptions],
    ) -> Steps[DatasetOut]:
        """Upload a dataset: .npz or .safetensors, or .tar, .tar.gz or .zip of pictures or sounds.

        It is being validated when this returns: see ``wait_ready``; ``submit`` waits for it by itself.

        Args:
            path: the file.
            preprocessing: how the data becomes model inputs: a spec, or the name of one.
            options: as for ``push_model``.
        """
        file = Path(path)
        upload = yield from self._upload(file, "dataset", options.get("progress"))
        body = {"name": options.get("name") or file.stem, "upload_id": upload.id, **told_of(options)}
        if isinstance(preprocessing, PreprocessingSpec):
            body["preprocessing"] = preprocessing.model_dump(mode="json")
        elif preprocessing is not None:
            body["preprocessing"] = preprocessing if isinstance(preprocessing, str) else dict(preprocessing)
        return DatasetOut.model_validate((yield from self._create("/v1/datasets", body)))

    @Call
    def dataset(self, dataset: Resource | str) -> Steps[DatasetOut]:
        """The dataset as it is now, by its id or a reference such as ``NAME@prod``."""
        path = yield from self._at("dataset", id_of(dataset))
        return (yield from self._get(DatasetOut, path))

    @Each
    def datasets(self, **filters: Unpack[ResourceFilters]) -> Items[DatasetOut, None]:
        """All datasets, newest first, read page by page; filters as for ``models``."""
        yield from self._list("/v1/datasets", DatasetOut, filters)

    @Call
    def thumbnails(self, dataset: Resource | str) -> Steps[bytes]:
        """A sheet of small pictures of a ready dataset of pictures, PNG."""
        return (yield from self._request("GET", f"/v1/datasets/{id_of(dataset)}/thumbnails")).content
