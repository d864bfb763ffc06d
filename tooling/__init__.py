"""Configuration, validation, serving and deployment for Triton; the command line."""
