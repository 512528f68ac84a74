"""Confinement of runners: the kernel controls, which are available, and what they allow."""
