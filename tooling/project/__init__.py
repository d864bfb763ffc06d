"""A project file, and the steps that make what it describes. Layer: above export and perf, below the command line."""
