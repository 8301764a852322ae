"""The same computation, faster: Triton kernels, the twins that infer, the twins that train."""
