"""A new version of a served model: tried beside the old one, put in its place, taken back. Layer: above ab."""
