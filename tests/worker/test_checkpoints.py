"""What is kept between the attempts of a job, and what one job keeps for others."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from sqlalchemy import update

from service.artifacts import repository
from service.db import db_now
from service.jobs import transitions
from service.storage import file_sha256
from service.tables import Job
from tests.support.tiny import make_tiny
from tests.worker.workbench import Workbench, finish, wait_for
from worker.checkpoints import checkpoint_folder, collect_checkpoints, open_checkpoints, settled_checkpoints

CONFIG = {"preset": "int8", "evaluation": {"latency_runs": 1, "layer_samples": 1}}
# Finds what the attempt before left, leaves something itself.
ATTEMPT = """
folder = task["checkpoint_dir"]
log(json.dumps(sorted(os.listdir(folder))))
open(os.path.join(folder, "layer-%d" % len(os.listdir(folder))), "w").write("done")
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)\n"
FAIL = """
say(line="error", problem=dict(type="", title="t", status=422, detail="no", code="engine-error"))
sys.exit(10)
"""


def submit(bench: Workbench, model: bytes = b"onnx", calibration: bytes = b"npz") -> str:
    model_id, data = bench.add_model({"net.onnx": model}), bench.add_dataset(calibration)
    return bench.submit(kind="quantize", model_id=model_id, calibration_dataset_id=data, config=CONFIG)


def found(bench: Workbench, job_id: str) -> list[list[str]]:
    """What each attempt found in its folder."""
    return [json.loads(event.data["message"]) for event in bench.events(job_id, "log")]


def test_a_killed_attempt_leaves_its_checkpoints_to_the_next_one(bench):
    job_id = submit(bench)
    bench.supervisor(ATTEMPT + KILL).run(job_id)
    assert bench.job(job_id).state == "queued"
    assert bench.scratch_folders() == [f"{job_id}.checkpoints"]
    bench.supervisor(ATTEMPT + FAIL).run(job_id)
    assert found(bench, job_id) == [[], ["layer-0"]]
    assert bench.job(job_id).state == "failed"
    assert bench.scratch_folders() == [], "the job has ended"


def test_an_interrupted_attempt_leaves_its_checkpoints_to_the_next_one(bench):
    job_id = submit(bench)
    stop = threading.Event()
    code = ATTEMPT + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(13))\nwhile True: time.sleep(0.02)\n"
    thread = threading.Thread(target=bench.supervisor(code, stopping=stop.is_set).run, args=(job_id,))
    thread.start()
    wait_for(lambda: list(bench.settings.scratch_dir.glob("*.checkpoints/layer-0")))
    stop.set()
    finish(thread)
    assert bench.job(job_id).interruptions == 1
    bench.supervisor(ATTEMPT + FAIL).run(job_id)
    assert found(bench, job_id) == [[], ["layer-0"]]


def test_the_engine_finds_its_checkpoint_after_a_kill_and_the_model_is_the_same(bench, tmp_path):
    """The real runner and engine; only that a step saves a checkpoint, and that it is killed after it, is added."""
    tiny = make_tiny(tmp_path)
    program = """
    from worker import runner
    from worker.quantizer import pipeline
    original = pipeline._fill
    def fill(model, origin, case, services):
        finished = services.checkpoint.load("layer conv")
        if finished is None and not os.path.exists(os.environ["BENCH"] + "/calm"):
            services.checkpoint.save("layer conv", b"its weights")
            os.kill(os.getpid(), signal.SIGKILL)
        services.run.log("found: %r" % finished)
        return original(model, origin, case, services)
    pipeline._fill = fill
    sys.exit(runner.main([task_file]))
    """
    files = (tiny.model.read_bytes(), tiny.calibration.read_bytes())
    killed = submit(bench, *files)
    for state in ("queued", "succeeded"):
        bench.supervisor(program).run(killed)
        assert bench.job(killed).state == state, bench.job(killed).error
    messages = [event.data["message"] for event in bench.events(killed, "log")]
    assert "found: b'its weights'" in messages
    assert sum("earlier attempt" in message for message in messages) == 1
    (bench.folder / "calm").touch()
    calm = submit(bench, *files)
    bench.supervisor(program).run(calm)
    assert "found: None" in [event.data["message"] for event in bench.events(calm, "log")], "another job's are not its"
    assert model_of(bench, killed) == model_of(bench, calm)
    assert bench.scratch_folders() == []


def test_a_training_that_is_killed_between_epochs_goes_on_and_gives_the_same_bytes(bench, tmp_path):
    """The real runner and engine, killed by -9 after the second epoch; nothing else is added."""
    tiny = make_tiny(tmp_path)
    program = """
    from worker import runner
    from worker.quantizer.training import memory
    memory._MOST_TIME = 1e9  # every epoch is kept, however short
    original = runner.LineRun.progress
    told = []
    def metric(self, stage, step, values):
        told.append(step)
        runner.LineRun.log(self, f"epoch {step}")
    def progress(self, stage, *rest):
        if told == [0, 1, 2] and not os.path.exists(os.environ["BENCH"] + "/calm"):
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, stage, *rest)
    runner.LineRun.metric, runner.LineRun.progress = metric, progress
    sys.exit(runner.main([task_file]))
    """
    qat = {"method": "qat", "epochs": 4, "accept": "always"}
    config = {**CONFIG, "weight": {"dtype": "int4"}, "activation": {"dtype": "uint4"}, "algorithms": [qat]}
    files = (tiny.model.read_bytes(), tiny.calibration.read_bytes())

    def submitted() -> str:
        model_id, data = bench.add_model({"net.onnx": files[0]}), bench.add_dataset(files[1])
        return bench.submit(kind="quantize", model_id=model_id, calibration_dataset_id=data, config=config)

    def epochs(job_id: str) -> list[str]:
        messages = [event.data["message"] for event in bench.events(job_id, "log")]
        return [message for message in messages if message.startswith("epoch")]

    killed = submitted()
    for state in ("queued", "succeeded"):
        bench.supervisor(program).run(killed)
        assert bench.job(killed).state == state, bench.job(killed).error
    assert epochs(killed) == [f"epoch {step}" for step in (0, 1, 2, 3, 4)], "none is done twice"
    (bench.folder / "calm").touch()
    calm = submitted()
    bench.supervisor(program).run(calm)
    assert epochs(calm) == epochs(killed)
    assert model_of(bench, killed) == model_of(bench, calm)


def model_of(bench: Workbench, job_id: str) -> str:
    with bench.database.read() as session:
        found = {item.kind: item.sha256 for item in repository.list_of_job(session, "default", job_id)}
    assert file_sha256(bench.store.path(found["model"])) == found["model"]
    return found["model"]


def test_checkpoints_go_once_the_job_was_settled_by_somebody_else(bench):
    """Canceled while it was queued, or out of time: no attempt of it ends on this host any more."""
    ended, queued, running = submit(bench), submit(bench), submit(bench)
    for job_id in (ended, queued, running):
        (open_checkpoints(bench.settings.scratch_dir, job_id, limit_bytes=100) / "layer").write_bytes(b"x")
    with bench.database.write() as session:
        transitions.request_cancel(session, "default", ended)
        transitions.claim(session, running, worker_id="w", lease_seconds=60)
        session.execute(update(Job).where(Job.id == running).values(lease_until=db_now() - 5))
    assert collect_checkpoints(bench.settings, bench.database) == 1
    assert bench.scratch_folders() == sorted(f"{job_id}.checkpoints" for job_id in (queued, running))
    assert collect_checkpoints(bench.settings, bench.database) == 0


def test_the_next_attempt_on_this_host_sweeps_what_others_left(bench):
    left = submit(bench)
    bench.supervisor(ATTEMPT + KILL).run(left)
    bench.cancel(left)
    assert bench.scratch_folders() == [f"{left}.checkpoints"]
    bench.supervisor("succeed()").run(bench.submit())
    assert bench.scratch_folders() == []


def test_more_than_the_limit_is_not_given_on(bench):
    bench.settings = bench.settings.model_copy(update={"checkpoint_bytes": 10})
    job_id = submit(bench)
    big = "open(task['checkpoint_dir'] + '/big', 'w').write('x' * 11)\nlog(json.dumps(task['checkpoint_bytes']))\n"
    bench.supervisor(big + KILL).run(job_id)
    bench.supervisor(ATTEMPT + FAIL).run(job_id)
    assert found(bench, job_id) == [10, []]


def test_the_oldest_go_first_where_attempts_left_too_much(tmp_path):
    folder = open_checkpoints(tmp_path, "job_x", limit_bytes=100)
    for age in range(4):
        (folder / f"layer-{age}").write_bytes(bytes(40))
        os.utime(folder / f"layer-{age}", (1e9 - age, 1e9 - age))
    open_checkpoints(tmp_path, "job_x", limit_bytes=100)
    assert sorted(path.name for path in folder.iterdir()) == ["layer-0", "layer-1"]


def test_a_folder_of_its_own_serves_every_host_and_is_swept_by_any(bench, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    own = bench.settings
    hosts = [own.model_copy(update={"scratch_dir": tmp_path / name, "checkpoint_dir": shared}) for name in "ab"]
    for host in hosts:
        host.scratch_dir.mkdir()
    ended, running = submit(bench), submit(bench)
    for job_id in (ended, running):
        (open_checkpoints(hosts[0].checkpoint_dir, job_id, limit_bytes=100) / "layer").write_bytes(b"x")
    # left there before the setting was made
    open_checkpoints(hosts[1].scratch_dir, ended, limit_bytes=100)
    bench.cancel(ended)
    assert settled_checkpoints(hosts[0], bench.database) == [checkpoint_folder(shared, ended)]
    assert collect_checkpoints(hosts[1], bench.database) == 2
    assert [path.name for path in shared.iterdir()] == [f"{running}.checkpoints"]
    assert (open_checkpoints(hosts[1].checkpoint_dir, running, limit_bytes=100) / "layer").read_bytes() == b"x"


def test_a_job_runs_without_checkpoints_while_their_storage_is_away(bench, tmp_path):
    bench.settings = bench.settings.model_copy(update={"checkpoint_dir": tmp_path / "not-mounted"})
    job_id = submit(bench)
    bench.supervisor("log(json.dumps(task['checkpoint_dir']))\n" + FAIL).run(job_id)
    told, given = [event.data["message"] for event in bench.events(job_id, "log")]
    assert told.startswith("checkpoints cannot be kept")
    assert json.loads(given) is None
    assert not (tmp_path / "not-mounted").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_only_a_folder_of_our_own_is_given(tmp_path, kind):
    path = checkpoint_folder(tmp_path, "job_x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    if kind == "link":
        path.symlink_to(outside)
    else:
        path.write_bytes(b"")
    folder = open_checkpoints(tmp_path, "job_x", limit_bytes=100)
    assert not folder.is_symlink()
    assert list(folder.iterdir()) == []
    assert (outside / "kept").exists()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_links_point_to_does_not_count(tmp_path):
    (tmp_path / "big").write_bytes(bytes(1000))
    folder = open_checkpoints(tmp_path, "job_x", limit_bytes=200)
    (folder / "link").symlink_to(tmp_path / "big")
    assert (open_checkpoints(tmp_path, "job_x", limit_bytes=200) / "link").is_symlink()


def test_a_task_names_its_tenants_cache(bench, tmp_path):
    bench.settings = bench.settings.model_copy(update={"cache_dir": tmp_path / "kept", "cache_bytes": 77})
    job_id = submit(bench)
    names = ("cache_dir", "cache_bytes", "cache_scope")
    bench.supervisor(f"log(json.dumps([task[name] for name in {names}]))\n{FAIL}").run(job_id)
    assert found(bench, job_id) == [[str(tmp_path / "kept"), 77, "default"]]


def test_nothing_is_kept_where_the_settings_say_so(bench):
    bench.settings = bench.settings.model_copy(update={"cache_bytes": 0, "checkpoint_bytes": 0})
    job_id = submit(bench)
    bench.supervisor("log(json.dumps([task['cache_dir'], task['checkpoint_dir']]))\n" + FAIL).run(job_id)
    assert found(bench, job_id) == [[None, None]]
    assert not Path(bench.settings.cache_dir).exists()
