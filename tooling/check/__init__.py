"""What Triton would say to a model repository, said offline; and what it would silently do wrong. Layer: check."""
