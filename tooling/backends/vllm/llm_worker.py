"""What vLLM imports in the process that computes: it asks Linux for the tile registers of AMX. Layer: backend.

vLLM's attention in bfloat16 uses them wherever the CPU has them, without asking: the process then dies of an illegal
instruction.
"""

from __future__ import annotations

import torch

torch.cpu._init_amx()  # says False where there are none


class Extension:
    """Adds nothing to vLLM's worker."""
