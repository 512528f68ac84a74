"""The one language all rooms speak: configuration, presets, report, dataset and progress records, errors."""
