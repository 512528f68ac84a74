"""A model that kills its runner twice in a row is refused, by its bytes, until somebody releases it."""

from __future__ import annotations

import pytest

from service.quarantine import repository
from service.quarantine.suspects import digest_of
from service.tables import ModelFile

FAULT = "os.kill(os.getpid(), signal.SIGSEGV)"


def held(bench, model_id: str):
    with bench.database.read() as session:
        return repository.held(session, "default", digest_of(bench.model(model_id).files))


def test_two_faults_quarantine_the_model_and_the_next_job_is_refused_without_a_runner(bench):
    model_id = bench.add_model({"net.onnx": b"bad", "weights.bin": b"weights"})
    first = bench.submit(model_id=model_id)
    supervisor = bench.supervisor(FAULT)
    supervisor.run(first)
    assert bench.job(first).state == "queued"
    assert held(bench, model_id) is None
    waiting = bench.submit(model_id=bench.add_model({"other.onnx": b"bad", "weights.bin": b"weights"}))
    supervisor.run(first)
    job = bench.job(first)
    assert (job.state, job.attempt, job.error["code"]) == ("failed", 2, "poison")
    assert "SIGSEGV" in job.error["detail"]
    assert "quarantine" in job.error["detail"]
    found = held(bench, model_id)
    assert found is not None
    assert (found.crashes, found.job_id) == (2, first)
    assert found.digest in job.error["hint"]
    bench.supervisor("open(os.environ['BENCH'] + '/ran', 'w'); succeed()").run(waiting)
    refused = bench.job(waiting)
    assert (refused.state, refused.attempt, refused.error["code"]) == ("failed", 1, "model-quarantined")
    assert first in refused.error["detail"]
    assert found.digest in refused.error["hint"]
    assert not (bench.folder / "ran").exists()


def test_faults_of_different_jobs_count_together_and_a_success_clears_them(bench):
    model_id = bench.add_model()
    for _ in range(2):
        bench.supervisor(FAULT).run(bench.submit(model_id=bench.add_model()))
        good = bench.submit(model_id=bench.add_model())
        bench.supervisor("succeed()").run(good)
        assert bench.job(good).state == "succeeded"
        assert held(bench, model_id) is None
    for _ in range(2):
        bench.supervisor(FAULT).run(bench.submit(model_id=bench.add_model()))
    assert held(bench, model_id) is not None
    with bench.database.read() as session:
        digest = digest_of(bench.model(model_id).files)
        assert repository.held(session, "another", digest) is None, "the same bytes of another tenant"


@pytest.mark.parametrize(
    "ending",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGILL)",
        "sys.exit(15)",
        "sys.exit(13)",
        "say(line='error', problem=dict(type='', title='', status=413, detail='', code='too-much'))\nsys.exit(12)",
        "say(line='error', problem=dict(type='', title='', status=507, detail='', code='storage-full'))\nsys.exit(14)",
    ],
)
def test_what_the_model_did_not_do_is_not_counted(bench, ending):
    model_id = bench.add_model()
    for _ in range(3):
        bench.supervisor(ending).run(bench.submit(model_id=model_id))
    assert held(bench, model_id) is None


def test_of_two_models_that_are_evaluated_none_is_suspected_and_none_cleared(bench):
    model_id, other = bench.add_model(), bench.add_model({"net.onnx": b"another"})
    given = {"kind": "evaluate", "model_id": model_id, "evaluation_dataset_id": bench.add_dataset()}
    asked = {**given, "config": {"evaluation": {}}}
    bench.supervisor(FAULT).run(bench.submit(model_id=model_id))
    for _ in range(2):
        bench.supervisor(FAULT).run(bench.submit(**asked, reference_model_id=other))
    assert held(bench, model_id) is None
    assert held(bench, other) is None
    bench.supervisor(FAULT).run(bench.submit(model_id=model_id))
    assert held(bench, model_id) is not None, "they cleared nothing"
    waiting = bench.submit(**{**asked, "model_id": other}, reference_model_id=model_id)
    bench.supervisor("succeed()").run(waiting)
    assert bench.job(waiting).error["code"] == "model-quarantined"


def test_the_digest_is_that_of_one_file_or_of_all_in_any_order():
    one, two = ModelFile(path="a.onnx", sha256="a" * 64), ModelFile(path="b.bin", sha256="b" * 64)
    assert digest_of([one]) == "a" * 64
    assert digest_of([one, two]) == digest_of([two, one])
    assert digest_of([one, two]) not in ("a" * 64, "b" * 64)
