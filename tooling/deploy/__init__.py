"""Deployment files for a model repository: compose, Kubernetes. Layer: deploy, under the command line."""
