"""Archives of pictures or sounds: read as hostile input, file by file, and made arrays by the preprocessing spec."""

from worker.quantizer.data.media.reading import Media, read_media, refuse_for_arrays

__all__ = ["Media", "read_media", "refuse_for_arrays"]
