"""What the config's searches were asked for, held against a model that may be returned instead of the chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.contracts.algorithms import Autopilot
from service.contracts.report import AlgorithmFigures, GateClause
from service.contracts.search import ReachedFigures
from worker.quantizer.evaluation.gate import search_clauses
from worker.quantizer.precision.goal import Referee, output_place
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Quantized
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session


class Goals:
    """Judges models by the goals and budgets of the config's searches.

    Args:
        case: what is quantized.
        outcomes: what became of each algorithm of the config.
        services: of the run.
    """

    def __init__(self, case: Case, outcomes: Sequence[AlgorithmFigures], services: Services) -> None:
        self._case, self._outcomes = case, tuple(outcomes)
        self._referees = {
            place: Referee(spec.goal, case, services, output_index=output_place(spec.output_index, case))
            for place, spec in enumerate(case.config.algorithms)
            if isinstance(spec, Autopilot) and place < len(outcomes) and outcomes[place].search is not None
        }

    @property
    def is_empty(self) -> bool:
        """True if nothing was searched for."""
        return not self._referees

    def outcomes(self, session: Session, *, size_bytes: int, latency_ratio: float) -> tuple[AlgorithmFigures, ...]:
        """The outcomes, as they are if this model is returned.

        Args:
            session: of the model.
            size_bytes: of its file.
            latency_ratio: over the float model's.

        Raises:
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        found = list(self._outcomes)
        for place, referee in self._referees.items():
            search, measured = found[place].search, referee.measure_session(session)
            reached = ReachedFigures(
                value=measured.value,
                undefined=measured.undefined,
                gap=measured.gap,
                goal_met=measured.met,
                size_bytes=size_bytes,
                latency_ratio=round(latency_ratio, 4),
            )
            returned = None if search is None else search.model_copy(update={"returned": reached})
            found[place] = found[place].model_copy(update={"search": returned})
        return tuple(found)

    def clauses(self, outcomes: Sequence[AlgorithmFigures]) -> tuple[GateClause, ...]:
        """What becomes of goals and budgets, as clauses of the gate."""
        return () if self.is_empty else search_clauses(self._case.config.algorithms, outcomes)


def with_outcomes(done: Quantized, outcomes: Sequence[AlgorithmFigures]) -> Quantized:
    """The model with what became of each algorithm told anew."""
    return replace(done, filled=replace(done.filled, outcomes=list(outcomes)))
