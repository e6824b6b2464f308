"""Conformance of the hologram device with torch's CPU device, over PyTorch's own test databases."""
