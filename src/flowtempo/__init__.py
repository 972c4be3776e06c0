"""flowtempo: choose where on the noise axis to train flow and diffusion models."""

__version__ = "0.1.0"
