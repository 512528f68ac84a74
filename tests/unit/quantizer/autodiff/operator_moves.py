"""Calls of the operators that move, find and make elements: the other half of ``operator_cases``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from tests.unit.quantizer.autodiff.operator_cases import Case, away, floats, ints, scalar
from tests.unit.quantizer.toolbox import normal


def _shapes() -> Iterator[Case]:
    x = normal(2, 3, 4)
    for shape in ((0, -1), (4, 6), (-1,), (1, 0, 8)):
        yield Case("Reshape(x, shape)", {"x": x, "shape": ints(*shape)})
    for axis in (0, 1, 2, -1, 3):
        yield Case(f"Flatten<axis={axis}>(x)", {"x": x})
    yield Case("Transpose(x)", {"x": x})
    yield Case("Transpose<perm=[1,2,0]>(x)", {"x": x})
    yield Case("Squeeze(x)", {"x": normal(1, 3, 1)})
    yield Case("Squeeze(x, axes)", {"x": normal(1, 3, 1), "axes": ints(-1)})
    yield Case("Unsqueeze(x, axes)", {"x": x, "axes": ints(-1, 1)})
    yield Case("Concat<axis=-2>(x, w)", {"x": x, "w": normal(2, 2, 4, seed=2)})
    yield Case("Split<axis=1>(x, sizes)", {"x": normal(2, 6), "sizes": ints(1, 3, 2)}, outputs=3)
    yield Case("Split<axis=1>(x)", {"x": normal(2, 6)}, outputs=3, opset=13)
    yield Case("Split<axis=-1, num_outputs=3>(x)", {"x": normal(2, 7)}, outputs=3)
    yield Case("Split<num_outputs=2>(x)", {"x": normal(6, 2)}, outputs=2)
    for shape in ((3, 4), (5, 3, 1), (1, 1), (2, 3, 4)):
        yield Case("Expand(x, shape)", {"x": normal(3, 1), "shape": ints(*shape)})
    yield Case("Tile(x, repeats)", {"x": x, "repeats": ints(2, 1, 3)})
    for mode in ("DCR", "CRD"):
        yield Case(f'DepthToSpace<blocksize=2, mode="{mode}">(x)', {"x": normal(2, 8, 3, 2)})
    yield Case("SpaceToDepth<blocksize=2>(x)", {"x": normal(2, 3, 4, 6)})
    for form in ("", "<upper=0>"):
        yield Case(f"Trilu{form}(x)", {"x": normal(2, 4, 5)})
        yield Case(f"Trilu{form}(x, k)", {"x": normal(2, 4, 5), "k": np.asarray(-1, np.int64)})


def _slices() -> Iterator[Case]:
    x = normal(6, 5, 4)
    for starts, ends, axes, steps in (
        ((1, 0), (5, 3), (0, 1), (2, 1)),
        ((-1,), (-1000,), (0,), (-1,)),
        ((1000, -2), (1, 1000), (1, 0), (-2, 1)),
        ((-1000,), (2**62,), (-1,), (3,)),
        ((4,), (1,), (1,), (-1,)),
        ((3,), (2,), (0,), (1,)),
    ):
        inputs = {"x": x, "s": ints(*starts), "e": ints(*ends), "a": ints(*axes), "t": ints(*steps)}
        yield Case("Slice(x, s, e, a, t)", inputs)
    yield Case("Slice(x, s, e)", {"x": x, "s": ints(1, 2), "e": ints(-1, 4)})
    for mode, pads in product(("constant", "reflect", "edge", "wrap"), ((0, 1, 2, 1, 0, 2), (0, 0, 3, 1, 1, 1))):
        yield Case(f'Pad<mode="{mode}">(x, pads)', {"x": normal(2, 3, 5), "pads": ints(*pads)})
    for mode in ("constant", "reflect", "edge", "wrap"):
        yield Case(f'Pad<mode="{mode}">(x, pads, , axes)', {"x": normal(2, 5), "pads": ints(2, 1), "axes": ints(-1)})
    for mode in ("constant", "edge"):
        yield Case(f'Pad<mode="{mode}">(x, pads)', {"x": normal(3, 6), "pads": ints(0, -1, 1, 2)})
    yield Case("Pad(x, pads, v)", {"x": normal(2, 3), "pads": ints(1, 0, 0, 2), "v": scalar(0.5)}, frozen=("v",))


def _indices() -> Iterator[Case]:
    x = normal(4, 5, 3)
    for form, indices in (("", ints(2, -1)), ("<axis=1>", ints(4, 0, -5, 0).reshape(2, 2)), ("<axis=-1>", ints(1)[0])):
        yield Case(f"Gather{form}(x, i)", {"x": x, "i": np.asarray(indices)})
    yield Case("Gather(x, i)", {"x": normal(5, 3), "i": ints(4, 0, -5, 0).reshape(2, 2)})
    yield Case("GatherElements<axis=1>(x, i)", {"x": x, "i": np.random.default_rng(1).integers(-5, 5, (4, 2, 3))})
    yield Case("GatherND(x, i)", {"x": x, "i": ints(0, 1, -1, -2).reshape(2, 2)})
    yield Case("GatherND(x, i)", {"x": x, "i": ints(0, 1, 2, -1, -2, -3).reshape(2, 3)})
    yield Case("GatherND<batch_dims=1>(x, i)", {"x": x, "i": ints(0, 1, -1, 4).reshape(4, 1)})
    yield Case("GatherND<batch_dims=1>(x, i)", {"x": x, "i": np.random.default_rng(1).integers(-3, 3, (4, 2, 2))})
    rows, new = ints(1, -1, 1).reshape(3, 1), normal(3, 5, 3, seed=3)
    apart = ints(1, 0, 3, 2).reshape(2, 2)
    yield Case("ScatterND(x, i, u)", {"x": x, "i": ints(2, 0).reshape(2, 1), "u": new[:2]})
    yield Case("ScatterND(x, i, u)", {"x": x, "i": apart, "u": normal(2, 3, seed=3)})
    for how in ("add", "mul", "max", "min"):
        yield Case(f'ScatterND<reduction="{how}">(x, i, u)', {"x": x, "i": rows, "u": new})
    places = ints(1, 0, -1, 3, 2, 0).reshape(2, 3)
    square, updates = away(4, 3), away(2, 3, seed=2)
    for how in ("none", "add", "mul", "max", "min"):
        yield Case(f'ScatterElements<reduction="{how}">(x, i, u)', {"x": square, "i": places, "u": updates})
    yield Case(
        "ScatterElements<axis=1>(x, i, u)", {"x": square, "i": ints(2, 0, 1, -1).reshape(2, 2), "u": normal(2, 2)}
    )
    values = {"depth": ints(4), "v": floats(-0.5, 2.0)}
    for form in ("", "<axis=0>", "<axis=1>"):
        yield Case(f"OneHot{form}(i, depth, v)", {"i": ints(0, 3, -1, 7, 2, 1).reshape(2, 3)} | values)


def _resizes() -> Iterator[Case]:
    x = normal(1, 2, 5, 4)
    coordinates = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
    for where, sizes in product(coordinates, ((10, 8), (7, 9), (2, 3), (1, 4))):
        target = {"x": x, "sizes": ints(1, 2, *sizes)}
        for mode in ("linear", "cubic"):
            form = f'mode="{mode}", coordinate_transformation_mode="{where}"'
            yield Case(f"Resize<{form}>(x, , , sizes)", target)
        for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            form = f'coordinate_transformation_mode="{where}", nearest_mode="{nearest}"'
            yield Case(f"Resize<{form}>(x, , , sizes)", target)
    for where, scale in product(coordinates, (2.0, 1.6, 0.7)):
        for mode in ("nearest", "linear", "cubic"):
            form = f'mode="{mode}", coordinate_transformation_mode="{where}"'
            yield Case(f"Resize<{form}>(x, , scales)", {"x": x, "scales": floats(1, 1, scale, scale)})
    for form in ("exclude_outside=1", "cubic_coeff_a=-0.5"):
        yield Case(f'Resize<mode="cubic", {form}>(x, , , sizes)', {"x": x, "sizes": ints(1, 2, 7, 9)})
    for mode, rank in product(("nearest", "linear"), (3, 5)):
        shape = (1, 2, *(4, 3, 5)[: rank - 2])
        doubled = floats(1, 1, *[2.0] * (rank - 2))
        yield Case(f'Resize<mode="{mode}">(x, , scales)', {"x": normal(*shape), "scales": doubled})
    yield Case("Resize<axes=[2,3]>(x, , scales)", {"x": x, "scales": floats(2, 3)})
    for policy in ("not_larger", "not_smaller"):
        form = f'axes=[2,3], keep_aspect_ratio_policy="{policy}", mode="linear"'
        yield Case(f"Resize<{form}>(x, , , sizes)", {"x": x, "sizes": ints(7, 9)})
    grid = np.random.default_rng(3).uniform(-1.3, 1.3, (1, 3, 4, 2)).astype(np.float32)
    for mode, padding, corners in product(("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)):
        form = f'mode="{mode}", padding_mode="{padding}", align_corners={corners}'
        yield Case(f"GridSample<{form}>(x, grid)", {"x": x, "grid": grid})
    yield Case('GridSample<mode="bilinear">(x, grid)', {"x": x, "grid": grid}, opset=16)


def _made() -> Iterator[Case]:
    x = away(2, 3)
    for kind in (6, 7, 11):  # differences of float64 show the derivative where the result is float64 or an integer
        yield Case(f"Cast<to={kind}>(x)", {"x": x})
    yield Case("Cast<to=9>(x)", {"x": floats(0, 1, -2)})
    yield Case("Range(a, b, c)", {"a": scalar(1), "b": scalar(3.4), "c": scalar(0.5)})


def moving_cases() -> list[Case]:
    """Operators that move, find and make elements."""
    return [case for family in (_shapes, _slices, _indices, _resizes, _made) for case in family()]
