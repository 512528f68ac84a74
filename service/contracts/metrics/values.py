"""Metrics of numbers: against targets of the dataset, and against the float model's output."""

from __future__ import annotations

from typing import ClassVar, Literal

from service.contracts.metrics.base import Facts, Labelled, OfOutput


class RegressionMetric(Labelled):
    """A metric of predicted numbers; targets have the output's shape, ones aside."""

    INTEGER_LABELS: ClassVar[bool] = False


class RMSE(RegressionMetric):
    """Root of the mean square error, in the target's unit."""

    FACTS: ClassVar[Facts] = Facts("", "lower")
    kind: Literal["rmse"] = "rmse"


class MAE(RegressionMetric):
    """Mean absolute error, in the target's unit."""

    FACTS: ClassVar[Facts] = Facts("", "lower")
    kind: Literal["mae"] = "mae"


class R2(RegressionMetric):
    """Coefficient of determination: 1 for exact, 0 for no better than the targets' mean, below 0 for worse.

    1 - sum (x - y)^2 / sum (y - mean y)^2; mean over the output's columns if it has several.
    """

    FACTS: ClassVar[Facts] = Facts("")
    kind: Literal["r2"] = "r2"


class Pearson(RegressionMetric):
    """Linear correlation with the target in [-1, 1]; mean over the output's columns if it has several."""

    FACTS: ClassVar[Facts] = Facts("")
    kind: Literal["pearson"] = "pearson"


class Spearman(RegressionMetric):
    """Pearson's correlation of the ranks, equal values sharing theirs. Keeps every value in memory."""

    FACTS: ClassVar[Facts] = Facts("")
    kind: Literal["spearman"] = "spearman"


class FidelityMetric(OfOutput):
    """Nearness of an output to the float model's. Needs no labels; has no value for the float model itself."""


class Agreement(FidelityMetric):
    """Share of positions where both models decide alike."""

    FACTS: ClassVar[Facts] = Facts("%", "higher", against_float=True, ideal=100.0)
    kind: Literal["agreement"] = "agreement"


class Cosine(FidelityMetric):
    """Cosine of the angle between both outputs, over all values."""

    FACTS: ClassVar[Facts] = Facts("", "higher", against_float=True, ideal=1.0)
    kind: Literal["cosine"] = "cosine"


class SQNR(FidelityMetric):
    """10 log10(sum x^2 / sum (x - x~)^2); 200 dB stands for identical outputs."""

    FACTS: ClassVar[Facts] = Facts("dB", "higher", against_float=True)
    kind: Literal["sqnr"] = "sqnr"


class PSNR(FidelityMetric):
    """10 log10(max |x|^2 / mean (x - x~)^2); 200 dB stands for identical outputs."""

    FACTS: ClassVar[Facts] = Facts("dB", "higher", against_float=True)
    kind: Literal["psnr"] = "psnr"


class KL(FidelityMetric):
    """Mean of sum p log(p / p~) over all rows, p the soft-maxed scores of the float model."""

    FACTS: ClassVar[Facts] = Facts("nats", "lower", against_float=True, ideal=0.0)
    kind: Literal["kl"] = "kl"


class L2(FidelityMetric):
    """||x - x~|| / ||x|| over all values."""

    FACTS: ClassVar[Facts] = Facts("", "lower", against_float=True, ideal=0.0)
    kind: Literal["l2"] = "l2"
