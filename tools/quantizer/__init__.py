"""The parts of tools/quantize."""
