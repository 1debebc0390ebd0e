"""What fills the memory: bytes of tensors by category, on a CPU and on CUDA."""
