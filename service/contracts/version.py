"""The version of the product and of its engine, in one place."""

VERSION = "0.1.0"
