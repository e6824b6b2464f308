"""Check an installed wheel: complete, imported from where it was installed, and computing.

Run by `make test-package` with the installed package first on the path, outside the source tree.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

import torch  # autoload brings the device


def main() -> int:
    import torch_hologram

    installed = Path(torch_hologram.__file__).resolve().parent
    expected = Path(sys.path[1]).resolve()  # the first entry of PYTHONPATH
    if not installed.is_relative_to(expected):
        print(f"torch_hologram comes from {installed}, not from {expected}", file=sys.stderr)
        return 1
    for name in ("py.typed", "_C.pyi", "include/torch_hologram.h"):
        if not resources.files(torch_hologram).joinpath(name).is_file():
            print(f"the wheel lacks {name}", file=sys.stderr)
            return 1
    x = torch.arange(6.0, device="hologram").reshape(2, 3)
    torch.testing.assert_close((x @ x.T).cpu(), torch.tensor([[5.0, 14.0], [14.0, 50.0]]))
    print(f"torch_hologram {torch_hologram.__version__} works from {installed.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
