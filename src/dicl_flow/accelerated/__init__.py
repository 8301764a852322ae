"""The same computation, faster: Triton kernels, inference (backend "fast"), training ("fused")."""
