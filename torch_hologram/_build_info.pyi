# _build_info.py is written by setup.py.
TORCH_MINOR: str
VERSION: str
TORCH_VERSION: str
