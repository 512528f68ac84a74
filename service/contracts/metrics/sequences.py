"""Metrics of sequences: recognized words, predicted tokens."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from service.contracts.metrics.base import ArrayName, Facts, Labelled, LabelRef, OutputRef


class WordErrorRate(Labelled):
    """Edits (insertions, deletions, substitutions) over the number of words in the labels, in percent.

    The output holds scores [n, time, class], or class numbers [n, time]; labels hold class numbers [n, words]. Every
    class number is a word of its own unless ``separator`` says where words end.
    """

    FACTS: ClassVar[Facts] = Facts("%", "lower")
    kind: Literal["word_error_rate"] = "word_error_rate"
    decode: Literal["ctc_greedy", "argmax"] = Field(
        default="ctc_greedy",
        description="ctc_greedy: the best class of each step, repeats merged, blanks left out; argmax: as it is.",
    )
    blank: int = Field(default=0, ge=0, description="The class that ctc_greedy leaves out.")
    padding: int = Field(default=-1, description="Number that fills short sequences, in labels and decoded outputs.")
    separator: int | None = Field(default=None, ge=0, description="The class between words, for outputs of letters.")
    time_first: bool = Field(default=False, description="The output is [time, n, class].")
    label_lengths: ArrayName | None = Field(
        default=None, description="Array [n] with the length of each label sequence, instead of padding."
    )
    output_lengths: OutputRef | None = Field(
        default=None, description="Output [n] with the number of steps of each sample; null: all."
    )

    def output_refs(self) -> dict[str, int | str]:
        """The scores, and their lengths."""
        lengths = {} if self.output_lengths is None else {"output_lengths": self.output_lengths}
        return {**super().output_refs(), **lengths}

    def label_refs(self) -> dict[str, LabelRef]:
        """The words, and their number."""
        lengths = {} if self.label_lengths is None else {"label_lengths": LabelRef(self.label_lengths, True)}
        return {**super().label_refs(), **lengths}


class Perplexity(Labelled):
    """exp of the mean negative log probability of the labels. The output holds scores [n, ..., class]."""

    FACTS: ClassVar[Facts] = Facts("", "lower")
    kind: Literal["perplexity"] = "perplexity"
    scores: Literal["logits", "log_probabilities", "probabilities"] = Field(
        default="logits", description="What the output holds."
    )
    shift: bool = Field(
        default=False, description="Position t is judged by the label at t + 1, for labels that are the input's tokens."
    )
    ignore_index: int = Field(default=-100, description="Label of what does not count.")
