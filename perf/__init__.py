"""Measuring, comparing and searching Triton configurations."""
