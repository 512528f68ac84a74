"""Brings a float model into the form that all later steps rely on, pass by pass."""
