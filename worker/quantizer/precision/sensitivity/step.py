"""Sensitivity as a step: ranks the layers and leaves the network as it is."""

from __future__ import annotations

from service.contracts.algorithms import SensitivityAnalysis
from service.contracts.algorithms.precision import Level, level_document
from worker.quantizer.precision.goal import output_place
from worker.quantizer.precision.layers import NO_LINEAR_NODE, find_layers
from worker.quantizer.precision.mixed.assignment import level_ranges
from worker.quantizer.precision.sensitivity.ranking import analyse_once, enough_samples, publish
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Step, Toolkit

_CANDIDATES = ("A16W16", "A8W16", "A16W8", "A8W8")


class SensitivityStep(Step[SensitivityAnalysis]):
    """Puts the ranking among the files of the job."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        """The same draft.

        Raises:
            InvalidConfigError: there is no such output.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        case, services, spec = toolkit.case, toolkit.services, self.spec
        layers = find_layers(draft.graph, draft.plan)
        if not layers:
            return Change.nothing(NO_LINEAR_NODE())
        own = (case.config.activation.model_dump(mode="json"), case.config.weight.model_dump(mode="json"))
        levels = spec.levels or {word: Level.model_validate(level_document(word, *own)) for word in _CANDIDATES}
        found = analyse_once(
            draft,
            layers,
            levels,
            list(levels)[-1],
            level_ranges(draft, list(levels.values()), case, services),
            case,
            services,
            verify=spec.verify,
            samples=spec.samples or enough_samples(len(layers)),
            first_sample=toolkit.first_sample,
            output_index=output_place(spec.output_index, case),
        )
        publish(found, services.files)
        first = found.layers[0]
        summary = f"{len(layers)} layers ranked on {found.samples} samples; the most sensitive one is {first.node!r}"
        return Change(draft, (), summary, judged=False)
