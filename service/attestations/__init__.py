"""Attestations: the inputs and the engine that a job's files were created from, signed by the installation.

``dsse`` and ``statement`` are the format, ``keys`` and ``signing`` the installation's keys, ``verification`` is what
anybody can do with a file, its attestation and a public key, without a service.
"""
