"""Models: uploaded, or made of new weights."""

from __future__ import annotations

from pathlib import Path

from service.client.uploads import UploadCalls, UploadProgress
from service.client.validation import ValidationCalls
from service.contracts.errors import InvalidRequestError
from service.models.schemas import ModelOut, is_main


class ModelCalls(UploadCalls, ValidationCalls):
    """Calls of ``/v1/models``."""

    def create_model(self, *paths: Path, name: str | None = None, progress: UploadProgress | None = None) -> ModelOut:
        """Upload a model: its .onnx file with the files of its external data, or one .pt2 file where they are allowed.

        The model is being validated when this returns: see ``wait_ready``.

        Raises:
            InvalidRequestError: not exactly one of the files ends in .onnx.
        """
        form = "pt2" if [path.suffix for path in paths] == [".pt2"] else "onnx"
        main = [path for path in paths if form == "pt2" or is_main(path.name)]
        if len(main) != 1:
            raise InvalidRequestError(
                f"Exactly one file must end in .onnx, found {len(main)}.", hint="All others are its external data."
            )
        files = []
        for path in paths:
            upload = self.upload_file(path, kind="model", progress=progress)
            files.append({"upload_id": upload.id, "path": path.name})
        body = {"name": name or main[0].stem, "files": files, "format": form}
        return ModelOut.model_validate(self._json("POST", "/v1/models", json=body))

    def create_model_version(
        self, skeleton_id: str, state_path: Path, *, name: str | None = None, progress: UploadProgress | None = None
    ) -> ModelOut:
        """Upload new weights for the graph of a ready model; the model of both is being validated when this returns.

        Args:
            skeleton_id: the model.
            state_path: what ``safetensors.torch.save_file(module.state_dict(), path)`` wrote.
            name: of the new model; default: that of the file.
            progress: as for ``upload_file``.
        """
        upload = self.upload_file(state_path, kind="model", progress=progress)
        body = {
            "name": name or state_path.stem,
            "format": "safetensors",
            "skeleton_model_id": skeleton_id,
            "files": [{"upload_id": upload.id, "path": f"{state_path.stem}.safetensors"}],
        }
        return ModelOut.model_validate(self._json("POST", "/v1/models", json=body))
