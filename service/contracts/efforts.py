"""How much work a choice takes: of a layer's weights by its shape alone, before any work and while it is done.

Shapes are (groups, outputs per group, inputs per group).
"""

from __future__ import annotations

Shape = tuple[int, int, int]

# Calibration samples that candidates of calibration method auto are tried on, at most.
TRIAL_SAMPLES = 32
# Patches: enough to tell the directions of the inputs apart, and more of them where they are cheap.
_PATCHES_PER_INPUT, _FEWEST_PATCHES, _CHEAP_ELEMENTS = 10, 4000, 2_000_000
# Elements of the patches that are looked at at once.
_MOST_ELEMENTS = 40_000_000
# A step of the gradient solver takes as long as so many multiplications, however small the layer.
_STEP = 3e7
_FEWEST_JUDGING, _MOST_JUDGING, _JUDGING_PART = 4, 64, 6


def moments_effort(shape: Shape, patches: int) -> float:
    """Multiplications that a layer takes from second moments of so many patches."""
    groups, outputs, inputs = shape
    # moments and products; inverses in float64; a few sweeps from two starts and after each round
    return groups * inputs * (2.0 * patches * (inputs + outputs) + 10.0 * inputs * inputs + 12.0 * inputs * outputs)


def gradients_effort(shape: Shape, positions_per_sample: float, steps: int, batch_size: int) -> float:
    """Multiplications that a layer takes by gradients.

    Args:
        shape: of the layer.
        positions_per_sample: patches that one sample has.
        steps: of the gradient solver.
        batch_size: samples in a step.
    """
    groups, outputs, inputs = shape
    # forward, and backward by inputs and by weights, at half the speed of plain products
    return steps * (6.0 * batch_size * positions_per_sample * groups * inputs * outputs + _STEP)


def wanted_patches(shape: Shape) -> int:
    """Patches that moments are taken from."""
    groups, outputs, inputs = shape
    one = groups * (inputs + outputs)
    wanted = max(_PATCHES_PER_INPUT * inputs + _FEWEST_PATCHES, _CHEAP_ELEMENTS // one)
    return min(wanted, max(_MOST_ELEMENTS // one, _FEWEST_PATCHES))


def held_back_samples(available: int) -> int:
    """How many of ``available`` calibration samples are for judging: a sixth of them, at most 64.

    With fewer than 24 samples all of them are used for both.
    """
    part = min(available // _JUDGING_PART, _MOST_JUDGING)
    return part if part >= _FEWEST_JUDGING else available
