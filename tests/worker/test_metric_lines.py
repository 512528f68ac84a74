"""Figures of steps on their way from a runner into the job's events."""

from __future__ import annotations

import pytest

from service.jobs.metric_events import latest_metrics
from service.jobs.views import event_out
from worker.lease import Timing


def test_every_metric_is_an_event_however_quickly_they_come(bench):
    job_id = bench.submit()
    bench.supervisor(
        """
        for step in range(500):
            say(line="progress", stage="qat", done=step, total=500)
            say(line="metric", stage="qat", step=step, values=dict(train_loss=step / 4, metric=None))
        os.write(3, b'{"line":"metric","stage":"qat","step":500,"values":{"train_loss":NaN,"metric":Infinity}}\\n')
        log("trained")
        succeed()
        """,
        timing=Timing(flush=0.3, flush_max=0.3),
    ).run(job_id)
    assert bench.job(job_id).state == "succeeded"
    metrics = bench.events(job_id, "metric")
    assert [event.data for event in metrics[:500]] == [
        {"stage": "qat", "step": step, "train_loss": step / 4, "metric": None} for step in range(500)
    ]
    assert metrics[500].data == {"stage": "qat", "step": 500, "train_loss": None, "metric": None}
    assert len(metrics) == 501
    assert len(bench.events(job_id, "progress")) < 100
    kinds = [event.type for event in bench.events(job_id)]
    assert kinds[-2:] == ["log", "state"]


def test_a_second_attempt_tells_a_step_again_under_its_own_number(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor(
        """
        again = os.path.exists(os.environ["BENCH"] + "/again")
        open(os.environ["BENCH"] + "/again", "w").close()
        for step in (2, 3) if again else (0, 1, 2):
            say(line="metric", stage="qat", step=step, values=dict(train_loss=1.0 + again))
        succeed() if again else os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    supervisor.run(job_id)
    supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"
    told = [(event.attempt, event.data["step"]) for event in bench.events(job_id, "metric")]
    assert told == [(1, 0), (1, 1), (1, 2), (2, 2), (2, 3)]
    curve = latest_metrics(map(event_out, bench.events(job_id)))["qat"]
    assert curve == {0: {"train_loss": 1.0}, 1: {"train_loss": 1.0}, 2: {"train_loss": 2.0}, 3: {"train_loss": 2.0}}


@pytest.mark.parametrize("values", ['{"step": 1.0}', '{"": 1.0}', '{"a\\u0000": 1.0}', '{"a": "x"}'])
def test_a_metric_line_that_is_none_is_a_crash(bench, values):
    job_id = bench.submit()
    line = f'{{"line": "metric", "stage": "qat", "step": 1, "values": {values}}}'
    bench.supervisor(f"os.write(3, {line!r}.encode() + b'\\n'); time.sleep(600)").run(job_id)
    assert bench.job(job_id).state == "queued"
    assert bench.events(job_id, "metric") == []
