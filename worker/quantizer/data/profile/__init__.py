"""What validation counts in a dataset's content: classes, values and waveforms, in the pass that reads it anyway."""

from worker.quantizer.data.profile.profiler import Profiler

__all__ = ["Profiler"]
