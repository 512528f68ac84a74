"""The weights of a job as safetensors, from the runner to a receiver, by a whole service."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import load

from tests.support.scripted import scripted
from tests.support.tiny import Tiny
from tests.support.webhooks import answering, received
from tests.worker.running import Service
from tests.worker.workbench import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_receiver_gets_the_weights_of_the_model(tiny: Tiny, tmp_path: Path) -> None:
    with scripted(answering(200)) as server:
        place = f"http://127.0.0.1:{server.port}"
        with Service(tmp_path / "home", QUANTMILL_EGRESS_ALLOWED=place) as service:
            target = {"kind": "put", "artifact": "weights", "url": f"{place}/net.safetensors"}
            job = service.client.submit(**service.upload(tiny), hand_over=[target])
            service.client.wait_succeeded(job.id)
            wait_for(lambda: service.client.hand_overs(job.id)[0].state == "done", message="nothing was sent")
            artifacts = {found.kind: found for found in service.client.artifacts(job.id)}
            service.client.download(job.id, tmp_path / "q.onnx")
    (request,) = received(server)
    sent = load(request.body)
    model = onnx.load(tmp_path / "q.onnx")
    kept = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert sent.keys() == kept.keys()
    assert all((sent[name] == kept[name]).all() and sent[name].dtype == kept[name].dtype for name in kept)
    assert set(artifacts) == {"model", "report", "samples", "graph", "weights"}
    assert artifacts["weights"].filename.endswith(".int8.safetensors")
