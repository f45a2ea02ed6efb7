"""Written when building: the minor release of PyTorch that the engine is for."""

TORCH_RELEASE: str
