"""The rules, one module per subject: what they are, and the functions that find them broken. Layer: check."""
