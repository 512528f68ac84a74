"""What becomes of the pictures of an archive before they are an array: decoded, resized, cut."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from service.contracts.base import Contract

MAX_SIDE = 4096

# Height or width in pixels.
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class ResizeSpec(Contract):
    """To which size, and by which filter: one of `shorter_side` and `size` is given.

    The other side of a picture resized by its shorter one is `int(shorter_side * longer / shorter)`, as in torchvision.
    """

    shorter_side: Side | None = Field(default=None, description="The shorter side; the aspect ratio stays.")
    size: tuple[Side, Side] | None = Field(default=None, description="Height and width; the aspect ratio may change.")
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] = Field(
        default="bilinear", description="Filter; `nearest` takes the pixel under the centre."
    )
    antialias: bool = Field(
        default=True,
        description=(
            "The filter is widened when pictures shrink: Pillow's resize, which torchvision and timm use for pictures. "
            "Without: as torch.nn.functional.interpolate (align_corners=False) and tf.image.resize, rounded to 8 bits."
        ),
    )

    @model_validator(mode="after")
    def _one_size(self) -> ResizeSpec:
        if (self.shorter_side is None) == (self.size is None):
            raise ValueError("give one of shorter_side and size")
        if self.interpolation == "lanczos" and not self.antialias:
            raise ValueError("lanczos is Pillow's filter: there is none without antialias")
        return self


class PictureSpec(Contract):
    """How each picture of an archive becomes one sample of the array `images`: uint8 [height, width, 3], or [height,
    width] for grey.

    Pictures are decoded as torchvision's default loader does: the first frame, converted by Pillow; the orientation in
    EXIF is not applied. Without `resize` and `crop` all pictures must have one size.
    """

    colour: Literal["rgb", "grey"] = Field(default="rgb", description="Pillow's mode RGB or L.")
    resize: ResizeSpec | None = Field(default=None, description="Done first.")
    crop: tuple[Side, Side] | None = Field(
        default=None,
        description=(
            "Height and width of the part cut out of the middle, from `int(round((height - crop) / 2.0))` on; smaller "
            "pictures are padded with black. As torchvision's CenterCrop."
        ),
    )

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of every sample; None: those of the pictures."""
        if self.crop is not None:
            return self.crop
        return None if self.resize is None else self.resize.size

    @property
    def changes(self) -> bool:
        """True if an array of RGB pictures would not stay as it is."""
        return self != PictureSpec()
