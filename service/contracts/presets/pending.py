"""Presets of AMD Quark that cannot be offered yet: asking for one tells what is missing, and never runs less."""

from __future__ import annotations

# What a group of presets waits for -> the presets, by their names in Quark.
PENDING_NEEDS: dict[str, tuple[str, ...]] = {
    "adaround": (
        "XINT8_ADAROUND",
        "XINT8_WEIGHTSONLY_ADAROUND",
        "S8S8_AAWS_ADAROUND",
        "U8S8_AAWS_ADAROUND",
        "S16S8_ASWS_ADAROUND",
        "U16S8_AAWS_ADAROUND",
        "A8W8_ADAROUND",
        "A16W8_ADAROUND",
        "INT8_CNN_ACCURATE",
        "INT16_CNN_ACCURATE",
        "INT8_TRANSFORMER_ACCURATE",
        "INT16_TRANSFORMER_ACCURATE",
        "XINT8_ADAROUND_QCONFIG",
        "A8W8_ADAROUND_QCONFIG",
        "A16W8_ADAROUND_QCONFIG",
    ),
    "adaquant": (
        "XINT8_ADAQUANT",
        "S8S8_AAWS_ADAQUANT",
        "U8S8_AAWS_ADAQUANT",
        "S16S8_ASWS_ADAQUANT",
        "U16S8_AAWS_ADAQUANT",
        "A8W8_ADAQUANT",
        "A16W8_ADAQUANT",
        "FP16_ADAQUANT",
        "BF16_ADAQUANT",
        "BFP16_ADAQUANT",
        "MX4_ADAQUANT",
        "MX6_ADAQUANT",
        "MX9_ADAQUANT",
        "MXFP8E5M2_ADAQUANT",
        "MXFP8E4M3_ADAQUANT",
        "MXFP6E3M2_ADAQUANT",
        "MXFP6E2M3_ADAQUANT",
        "MXFP4E2M1_ADAQUANT",
        "MXINT8_ADAQUANT",
        "XINT8_ADAQUANT_QCONFIG",
        "A8W8_ADAQUANT_QCONFIG",
        "A16W8_ADAQUANT_QCONFIG",
    ),
    "mixed_precision": ("S16S16_MIXED_S8S8", "BF16_MIXED_BFP16", "BF16_MIXED_MXINT8"),
    "mixed_precision and adaquant": ("BF16_MIXED_BFP16_ADAQUANT", "BF16_MIXED_MXINT8_ADAQUANT"),
}

PENDING_PRESETS: dict[str, str] = {
    name.lower(): f"it needs the algorithm {needs}, which is not there yet"
    for needs, names in PENDING_NEEDS.items()
    for name in names
}
